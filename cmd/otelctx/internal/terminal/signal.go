// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// SameSignal is the time within which a second signal counts as a copy of the first one. timeout(1), for example,
// signals both the command and its process group.
const SameSignal = 300 * time.Millisecond

// UntilInterrupted returns a context that the first SIGINT, SIGTERM or SIGHUP (the terminal was closed)
// cancels. SIGHUP is left alone if nohup made the process ignore it. A signal that arrives more than
// SameSignal later restores the terminal's usual screen and ends the process. The caller calls release when it no
// longer needs the context.
func UntilInterrupted() (ctx context.Context, release func()) {
	ctx, stop := signal.NotifyContext(context.Background(), Interrupts()...)
	forget := context.AfterFunc(ctx, func() {
		time.Sleep(SameSignal)
		second := make(chan os.Signal, 1)
		signal.Notify(second, Interrupts()...)
		stop()
		endBy(<-second)
	})
	return ctx, func() {
		if forget() { // otherwise, there was a first signal
			stop()
		}
	}
}

// Interrupts are the signals with which users end this program.
func Interrupts() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// endBy ends the process as s does if nothing handles it.
func endBy(s os.Signal) {
	if screen := entered.Load(); screen != nil {
		closed := make(chan struct{})
		go func() {
			_ = screen.Close() // The process ends anyway.
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(SameSignal): // The terminal is stopped, which may be why the user sends a second signal.
		}
	}
	signal.Reset(s)
	if self, err := os.FindProcess(os.Getpid()); err == nil && self.Signal(s) == nil {
		time.Sleep(SameSignal)
	}
	os.Exit(1) // The signal has been ignored since the start of the process, as SIGINT is in background jobs.
}
