// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameSignal is how long after a signal another one is believed to be the same.
// timeout(1), for one, sends it to the command and to its process group.
const sameSignal = 300 * time.Millisecond

// untilInterrupted returns a context that the first SIGINT or SIGTERM ends, and SIGHUP, as of a
// terminal that goes away, unless nohup has it ignored. The next one is nobody's but the system's.
// release is to be called when the context is needed no more.
func untilInterrupted() (ctx context.Context, release func()) {
	ctx, stop := signal.NotifyContext(context.Background(), interrupts()...)
	context.AfterFunc(ctx, func() {
		time.Sleep(sameSignal)
		stop()
	})
	return ctx, func() {
		if ctx.Err() == nil {
			stop()
		}
	}
}

// interrupts are the signals by which users end this program.
func interrupts() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
