// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// patience is how long a process may take to start and to stop.
const patience = 30 * time.Second

// process is a command that runs beside this one.
type process struct {
	name    string
	command *exec.Cmd
	cancel  context.CancelFunc
	// ended is closed when it has ended; err is then what Wait said.
	ended chan struct{}
	err   error
}

// newProcess returns a command that is told to end by SIGTERM, when ctx is done or
// [process.stop] is called.
func newProcess(ctx context.Context, environ []string, name string, args ...string) *process {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{name: name, cancel: cancel, ended: make(chan struct{})}
	p.command = exec.CommandContext(ctx, name, args...) //nolint:gosec // The user says what to run.
	p.command.Env = append(os.Environ(), environ...)
	p.command.Stderr = os.Stderr
	p.command.Cancel = func() error { return p.command.Process.Signal(syscall.SIGTERM) }
	p.command.WaitDelay = patience
	return p
}

// run runs it to its end.
func (p *process) run() error {
	defer p.cancel()
	if err := p.command.Run(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// start starts it. It is to be stopped.
func (p *process) start() error {
	if err := p.command.Start(); err != nil {
		p.cancel()
		return fmt.Errorf("%s: %w", p.name, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return nil
}

// stop ends it, and returns an error if it did not end in order or had ended before.
func (p *process) stop() error {
	early := false
	select {
	case <-p.ended:
		early = true
	default:
	}
	p.cancel()
	<-p.ended
	switch {
	case early:
		return fmt.Errorf("%s has ended too early: %w", p.name, p.err)
	case !p.command.ProcessState.Success():
		return fmt.Errorf("%s: %w", p.name, p.err)
	default:
		return nil // Wait's error only says that it was told to end.
	}
}

// listens waits until it accepts connections at these addresses.
func (p *process) listens(ctx context.Context, addresses ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, address := range addresses {
		for {
			connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				_ = connection.Close()
				break
			}
			select {
			case <-p.ended:
				return fmt.Errorf("%s has not come to listen at %s", p.name, address)
			case <-ctx.Done():
				return fmt.Errorf("%s does not listen at %s: %w", p.name, address, err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}
