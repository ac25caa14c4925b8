// Command devserver is a whole Temporal server (frontend, history, matching,
// worker) and its Web UI in one process, on a loopback address.
//
// It takes the flags of `temporal server start-dev`, and those two words too, so
// one argument list drives either program. What it adds is -postgres: state is
// then kept in that database, in the schemas temporal and temporal_visibility,
// which it makes and brings up to date at each start. Its defaults suit a small
// server where latency matters; see settings.go.
//
// It is a module of its own because the Temporal server needs hundreds of
// modules, some in versions other than those of the SDK that Bobbin uses.
// SIGINT and SIGTERM stop it; it exits 0 then, and 1 with a message on standard
// error when it can't start.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

// gcPercent is how much the heap may grow before it is collected. It is small, some tens of megabytes, and the runtime's
// default of 100 spends a tenth of the server's CPU on it.
const gcPercent = 400

// stopLimit bounds a clean stop. All state is in the database, so a stop cut
// short costs nothing but time-outs of the polls in flight.
const stopLimit = 10 * time.Second

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "devserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	orphaned := make(chan struct{})
	if o.withParent {
		go watchParent(os.Getppid(), orphaned)
	}

	// Start can't be cancelled, and a signal must not wait for it: what it
	// writes is safe to break off.
	type started struct {
		s   *server
		err error
	}
	ready := make(chan started, 1)
	go func() {
		s, err := start(o)
		ready <- started{s, err}
	}()
	var s *server
	select {
	case r := <-ready:
		if r.err != nil {
			return r.err
		}
		s = r.s
	case <-stop:
		return nil
	case <-orphaned:
		return nil
	}
	fmt.Println("Temporal: ", o.address())
	if o.uiPort != 0 {
		fmt.Println("UI:        http://" + o.uiAddress())
	}

	select {
	case <-stop:
	case <-orphaned:
	}
	return s.stop(stop)
}

// watchParent closes orphaned when the process has another parent than at start.
// On Linux the one who starts us asks the kernel for a signal instead.
func watchParent(parent int, orphaned chan<- struct{}) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	close(orphaned)
}
