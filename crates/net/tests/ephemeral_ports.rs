//! Where the ports that are given to who asks for none come to an end. In a program of its own: the
//! setting is everybody's.

use abi::errno::Errno;
use fs::ramfs::RamFs;
use fs::{Cred, File, FsStruct, OpenFlags, mount};
use linux_raw_sys::net as sys;
use net::{Address, Caller, Socket, SocketOps, SocketType, WaitPolicy, sysctl};
use std::sync::Arc;

const PATIENT: WaitPolicy = WaitPolicy {
    nonblocking: false,
    timeout_ns: 0,
};

fn protocol(file: &File) -> &dyn SocketOps {
    file.ops_as::<Socket>().unwrap().ops()
}

fn make(kind: SocketType) -> Arc<File> {
    net::inet::socket(sys::AF_INET, kind, 0)
        .unwrap()
        .into_file(OpenFlags::empty())
}

#[test]
fn ports_that_are_given_are_of_the_range_and_come_to_an_end() {
    let context = FsStruct::new(mount::Namespace::new(
        RamFs::new("tmpfs", None, 0o755),
        "none",
    ));
    let cred = Cred::root();
    let caller = Caller {
        walk: context.walk(&cred),
        umask: 0,
    };
    let at = |text: &str| Address::Inet(text.parse().unwrap());
    let range = sysctl::all()
        .find(|setting| setting.path == "ipv4/ip_local_port_range")
        .unwrap();
    range.set(b"40000 40002").unwrap();
    for kind in [SocketType::Datagram, SocketType::Stream] {
        let server = make(kind);
        protocol(&server)
            .bind(&caller, &at("127.0.0.1:50000"))
            .unwrap();
        if kind == SocketType::Stream {
            protocol(&server).listen(10).unwrap();
        }
        let connect =
            |file: &File| protocol(file).connect(&caller, &at("127.0.0.1:50000"), PATIENT);
        let sockets = [(); 4].map(|()| make(kind));
        let mut results: Vec<_> = sockets.iter().map(|socket| connect(socket)).collect();
        assert_eq!(
            (results.pop(), results),
            (Some(Err(Errno::EADDRINUSE)), vec![Ok(()); 3]),
            "{kind:?}"
        );
        let mut ports: Vec<_> = sockets[..3]
            .iter()
            .map(|socket| protocol(socket).local_address())
            .collect();
        ports.sort_by_key(|address| format!("{address:?}"));
        assert_eq!(
            ports,
            [40_000, 40_001, 40_002].map(|port| at(&format!("127.0.0.1:{port}")))
        );
        let [first, .., last] = sockets;
        drop(first);
        assert!(connect(&last).is_ok(), "one is free again");
    }
}
