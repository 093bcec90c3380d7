// Checks of the Linux interface through Go's runtime, which uses it in its own way: threads by bare clone, futexes, SIGURG to
// preempt goroutines, large reservations of address space, epoll, and system calls without the C library.
//
// "list" prints the checks' names; a NAME runs one and prints "ok NAME", or says what is wrong and exits with status 1.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type check struct {
	name string
	run  func() error
}

var checks = []check{
	{"go-goroutines", goroutines},
	{"go-mutex", mutex},
	{"go-channels", channels},
	{"go-preemption", preemption},
	{"go-garbage-collection", garbageCollection},
	{"go-timers", timers},
	{"go-clock", clock},
	{"go-signals", signals},
	{"go-nil-pointer", nilPointer},
	{"go-files", files},
	{"go-pipes", pipes},
	{"go-child-process", childProcess},
	{"go-deep-stack", deepStack},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go-tests list | go-tests NAME")
		os.Exit(2)
	}
	if os.Args[1] == "list" {
		for _, check := range checks {
			fmt.Println(check.name)
		}
		return
	}
	for _, check := range checks {
		if check.name != os.Args[1] {
			continue
		}
		if err := check.run(); err != nil {
			fmt.Printf("not ok %s: %v\n", check.name, err)
			os.Exit(1)
		}
		fmt.Printf("ok %s\n", check.name)
		return
	}
	fmt.Fprintf(os.Stderr, "no check is called %s\n", os.Args[1])
	os.Exit(2)
}

func goroutines() error {
	var group sync.WaitGroup
	var sum int64
	for n := 1; n <= 1000; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			runtime.Gosched()
			atomic.AddInt64(&sum, int64(n))
		}(n)
	}
	group.Wait()
	if sum != 500500 {
		return fmt.Errorf("the sum is %d", sum)
	}
	return nil
}

func mutex() error {
	var lock sync.Mutex
	var group sync.WaitGroup
	count := 0
	for n := 0; n < 8; n++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for round := 0; round < 5000; round++ {
				lock.Lock()
				count++
				lock.Unlock()
			}
		}()
	}
	group.Wait()
	if count != 40000 {
		return fmt.Errorf("the count is %d", count)
	}
	return nil
}

// A prime sieve: a chain of goroutines, each of which passes on what its prime does not divide.
func channels() error {
	numbers := make(chan int)
	done := make(chan struct{})
	defer close(done)
	go func(to chan<- int) {
		for n := 2; ; n++ {
			select {
			case to <- n:
			case <-done:
				return
			}
		}
	}(numbers)
	var prime int
	for n := 0; n < 60; n++ {
		prime = <-numbers
		next := make(chan int)
		go func(from <-chan int, to chan<- int, prime int) {
			for {
				select {
				case n := <-from:
					if n%prime == 0 {
						continue
					}
					select {
					case to <- n:
					case <-done:
						return
					}
				case <-done:
					return
				}
			}
		}(numbers, next, prime)
		numbers = next
	}
	if prime != 281 {
		return fmt.Errorf("the 60th prime is given as %d", prime)
	}
	return nil
}

// Goroutines that never yield must not keep others from running: the runtime sends their threads SIGURG.
func preemption() error {
	previous := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(previous)
	var stop int32
	for n := 0; n < 3; n++ {
		go func() {
			for value := 1; atomic.LoadInt32(&stop) == 0; value *= 3 {
			}
		}()
	}
	for n := 0; n < 3; n++ {
		time.Sleep(5 * time.Millisecond)
	}
	atomic.StoreInt32(&stop, 1)
	return nil
}

func garbageCollection() error {
	type node struct {
		next *node
		data [1000]byte
	}
	var kept *node
	for n := 0; n < 30000; n++ {
		fresh := &node{}
		fresh.data[n%1000] = 1
		if n%100 == 0 {
			fresh.next, kept = kept, fresh
		}
	}
	runtime.GC()
	count := 0
	for at := kept; at != nil; at = at.next {
		sum := 0
		for _, value := range at.data {
			sum += int(value)
		}
		if sum != 1 {
			return fmt.Errorf("a kept block sums to %d", sum)
		}
		count++
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	if count != 300 || stats.NumGC < 2 {
		return fmt.Errorf("%d blocks kept, %d collections", count, stats.NumGC)
	}
	return nil
}

func timers() error {
	start := time.Now()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; n < 5; n++ {
		<-ticker.C
	}
	select {
	case <-time.After(20 * time.Millisecond):
	case <-time.After(20 * time.Second):
		return fmt.Errorf("the later timer fired first")
	}
	if elapsed := time.Since(start); elapsed < 60*time.Millisecond {
		return fmt.Errorf("timers of 70 ms in all took %v", elapsed)
	}
	return nil
}

// Go reads clocks from the vDSO: Skerry's records show no call. Without records only the clocks' order is seen.
func clock() error {
	trace, err := os.OpenFile("/proc/skerry/trace", os.O_RDWR, 0)
	if err == nil {
		defer trace.Close()
		if _, err := trace.WriteString("call"); err != nil {
			return err
		}
	}
	last := time.Now()
	for n := 0; n < 2000; n++ {
		now := time.Now()
		if now.Before(last) {
			return fmt.Errorf("the clock went back from %v to %v", last, now)
		}
		last = now
	}
	if err != nil {
		return nil
	}
	if _, err := trace.WriteString("off"); err != nil {
		return err
	}
	records := make([]byte, 1<<20)
	length, err := trace.Read(records)
	if err != nil {
		return err
	}
	const callBegins = 6
	calls := 0
	for ; length >= 32; length -= 32 {
		record := records[length-32 : length]
		if record[8] == callBegins && binary.LittleEndian.Uint64(record[16:]) == syscall.SYS_CLOCK_GETTIME {
			calls++
		}
	}
	if calls > 0 {
		return fmt.Errorf("%d system calls for the time", calls)
	}
	return nil
}

func signals() error {
	arrived := make(chan os.Signal, 10)
	signal.Notify(arrived, syscall.SIGUSR1, syscall.SIGTERM)
	for _, number := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGUSR1} {
		if err := syscall.Kill(os.Getpid(), number); err != nil {
			return err
		}
		select {
		case got := <-arrived:
			if got != number {
				return fmt.Errorf("%v arrived as %v", number, got)
			}
		case <-time.After(10 * time.Second):
			return fmt.Errorf("%v did not arrive", number)
		}
	}
	return nil
}

// A nil pointer is a SIGSEGV that the runtime turns into a panic, on an alternate stack and with a changed instruction pointer.
func nilPointer() (err error) {
	defer func() {
		if recovered := recover(); recovered == nil {
			err = fmt.Errorf("reading through a nil pointer went unnoticed")
		}
	}()
	var pointer *[100]int
	return fmt.Errorf("read %d", pointer[50])
}

func files() error {
	directory, err := os.MkdirTemp("", "go-tests")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	data := bytes.Repeat([]byte("0123456789abcdef"), 10000)
	if err := os.WriteFile(filepath.Join(directory, "b"), data, 0o600); err != nil {
		return err
	}
	if err := os.Symlink("b", filepath.Join(directory, "a")); err != nil {
		return err
	}
	back, err := os.ReadFile(filepath.Join(directory, "a"))
	if err != nil {
		return err
	}
	if sha256.Sum256(back) != sha256.Sum256(data) {
		return fmt.Errorf("the file reads differently")
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	sort.Strings(names)
	if fmt.Sprint(names) != "[a b]" {
		return fmt.Errorf("the directory lists %v", names)
	}
	return nil
}

func pipes() error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	go func() {
		for n := 0; n < 1000; n++ {
			fmt.Fprintln(writer, n)
		}
		writer.Close()
	}()
	var last, count int
	for {
		if _, err := fmt.Fscanln(reader, &last); err != nil {
			break
		}
		count++
	}
	if count != 1000 || last != 999 {
		return fmt.Errorf("%d lines came through, the last is %d", count, last)
	}
	return nil
}

func childProcess() error {
	output, err := exec.Command("/bin/busybox", "echo", "from", "a", "child").CombinedOutput()
	if err != nil || string(output) != "from a child\n" {
		return fmt.Errorf("the child said %q: %v", output, err)
	}
	err = exec.Command("/bin/busybox", "false").Run()
	if exit, is := err.(*exec.ExitError); !is || exit.ExitCode() != 1 {
		return fmt.Errorf("false ended with %v", err)
	}
	return nil
}

func depth(n int) int {
	var block [256]byte
	block[n%256] = 1
	if n == 0 {
		return int(block[0])
	}
	return depth(n-1) + int(block[n%256])
}

func deepStack() error {
	result := make(chan int)
	go func() { result <- depth(50000) }()
	if found := <-result; found != 50001 {
		return fmt.Errorf("the depth is %d", found)
	}
	return nil
}
