// An HTTP server and its clients in one process, as Go programs are written: over IPv4, IPv6, a name and a local socket, with
// connections that are kept, uploads, files, streams, a client that goes away, and an orderly end.
// It prints "ok" and whether it uses the C library.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	clients  = 10
	requests = 5
)

func main() {
	if err := run(); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	linked := "static"
	if maps, _ := os.ReadFile("/proc/self/maps"); bytes.Contains(maps, []byte("libc.so.6")) {
		linked = "with libc.so.6"
	}
	fmt.Println("ok,", linked)
}

func handler(directory string, served *int32, gone chan<- struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		atomic.AddInt32(served, 1)
		hash := sha256.New()
		if _, err := io.Copy(hash, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, "%x", hash.Sum(nil))
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < 5; i++ {
			fmt.Fprintf(w, "part %d\n", i)
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/wait", func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	})
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(directory))))
	return mux
}

// ask sends a request and compares the answer.
func ask(client *http.Client, method, url string, body, expected []byte) error {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != 200 || !bytes.Equal(answer, expected)) {
		err = fmt.Errorf("%s %s: %s, %d bytes", method, url, response.Status, len(answer))
	}
	return err
}

// talk makes a client's requests.
func talk(client *http.Client, url string, who int, file []byte) error {
	for i := 0; i < requests; i++ {
		body := file[:1000*who*(i+1)]
		if err := ask(client, "POST", url+"/sum", body, []byte(fmt.Sprintf("%x", sha256.Sum256(body)))); err != nil {
			return err
		}
	}
	if err := ask(client, "GET", url+"/stream", nil, []byte("part 0\npart 1\npart 2\npart 3\npart 4\n")); err != nil {
		return err
	}
	return ask(client, "GET", url+"/files/big", nil, file)
}

func run() error {
	directory, err := os.MkdirTemp("", "http")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	file := bytes.Repeat([]byte("skerry\n"), 100000)
	if err := os.WriteFile(filepath.Join(directory, "big"), file, 0o644); err != nil {
		return err
	}
	var served int32
	gone, ended := make(chan struct{}), make(chan error, 3)
	server := &http.Server{Handler: handler(directory, &served, gone)}
	local := filepath.Join(directory, "socket")
	var urls []string
	for _, at := range [][2]string{{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}, {"unix", local}} {
		listener, err := net.Listen(at[0], at[1])
		if err != nil {
			return err
		}
		if address, tcp := listener.Addr().(*net.TCPAddr); tcp {
			urls = append(urls, "http://"+address.String())
			if at[0] == "tcp4" {
				urls = append(urls, fmt.Sprintf("http://localhost:%d", address.Port))
			}
		}
		go func() { ended <- server.Serve(listener) }()
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", local)
	}
	overLocal := &http.Client{Transport: &http.Transport{DialContext: dial}}
	overTCP := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	var group sync.WaitGroup
	failures := make(chan error, clients*(len(urls)+1))
	start := func(client *http.Client, url string, who int) {
		group.Add(1)
		go func() {
			defer group.Done()
			failures <- talk(client, url, who, file)
		}()
	}
	for who := 0; who < clients; who++ {
		for _, url := range urls {
			start(overTCP, url, who)
		}
		start(overLocal, "http://local", who)
	}
	group.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return err
		}
	}
	if n := int(atomic.LoadInt32(&served)); n != clients*(len(urls)+1)*requests {
		return fmt.Errorf("%d requests were served", n)
	}
	// A client that gives up is noticed.
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	request, _ := http.NewRequestWithContext(ctx, "GET", urls[0]+"/wait", nil)
	if _, err := overTCP.Do(request); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("a request without an answer ended with %v", err)
	}
	<-gone
	if err := server.Shutdown(context.Background()); err != nil {
		return err
	}
	for i := 0; i < 3; i++ {
		if err := <-ended; err != http.ErrServerClosed {
			return err
		}
	}
	if _, err := overTCP.Get(urls[0]); err == nil {
		return errors.New("a server that has ended answers")
	}
	return nil
}
