//! A server and its clients on tokio.

use std::io;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net;

use crate::Check;

pub const CHECKS: &[(&str, Check)] = &[("tokio-server", tokio_server)];

/// A server on the runtime that most Rust servers are built on: a few threads, an epoll set, an
/// eventfd, sockets that do not block.
fn tokio_server() -> Result<()> {
    const CLIENTS: u32 = 40;
    const QUESTIONS: u32 = 20;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_io()
        .build()?;
    runtime.block_on(async {
        for at in ["127.0.0.1:0", "[::1]:0", "localhost:0"] {
            let listener = net::TcpListener::bind(at).await?;
            let address = listener.local_addr()?;
            let serving = tokio::spawn(async move {
                for _ in 0..CLIENTS {
                    let (mut stream, _) = listener.accept().await?;
                    tokio::spawn(async move {
                        let mut buf = [0; 4];
                        while stream.read_exact(&mut buf).await.is_ok() {
                            // A client that is gone is not asked why.
                            let _ = stream
                                .write_all(&(u32::from_ne_bytes(buf) + 1).to_ne_bytes())
                                .await;
                        }
                    });
                }
                io::Result::Ok(())
            });
            let clients = (0..CLIENTS).map(|who| {
                tokio::spawn(async move {
                    let mut stream = net::TcpStream::connect(address).await?;
                    for i in 0..QUESTIONS {
                        let question = who * QUESTIONS + i;
                        stream.write_all(&question.to_ne_bytes()).await?;
                        if stream.read_u32_le().await? != question + 1 {
                            return Err(io::Error::other("a wrong answer"));
                        }
                    }
                    Ok(())
                })
            });
            for client in clients.collect::<Vec<_>>() {
                client.await??;
            }
            serving.await??;
        }
        Ok(())
    })
}
