// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// patience is the time limit for starting and stopping a process.
const patience = 30 * time.Second

// process is a command that runs in the background.
type process struct {
	name    string
	command *exec.Cmd
	cancel  context.CancelFunc
	// stopping is set before the process gets SIGTERM. ended is closed when it has ended.
	stopping atomic.Bool
	ended    chan struct{}
}

// newProcess returns a process that has not been started. It gets SIGTERM when ctx is done or
// [process.stop] is called.
func newProcess(ctx context.Context, environ []string, name string, args ...string) *process {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{name: name, cancel: cancel, ended: make(chan struct{})}
	p.command = exec.CommandContext(ctx, name, args...) //nolint:gosec // The user says what to run.
	p.command.Env = append(os.Environ(), environ...)
	p.command.Stderr = os.Stderr
	p.command.Cancel = func() error {
		p.stopping.Store(true)
		return p.command.Process.Signal(syscall.SIGTERM)
	}
	p.command.WaitDelay = patience
	return p
}

// run runs the command to its end.
func (p *process) run() error {
	defer p.cancel()
	if err := p.command.Run(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// start starts the command. The caller must stop it.
func (p *process) start() error {
	if err := p.command.Start(); err != nil {
		p.cancel()
		return fmt.Errorf("%s: %w", p.name, err)
	}
	go func() {
		_ = p.command.Wait() // The result is in ProcessState.
		close(p.ended)
	}()
	return nil
}

// stop ends the process and waits for it. It returns an error if the process failed, or had already
// ended by itself.
func (p *process) stop() error {
	early := false
	select {
	case <-p.ended:
		early = !p.stopping.Load()
	default:
	}
	p.cancel()
	<-p.ended
	switch state := p.command.ProcessState; {
	case early:
		return fmt.Errorf("%s ended too early: %v", p.name, state)
	case !state.Success():
		return fmt.Errorf("%s: %v", p.name, state)
	default:
		return nil
	}
}

// listens waits until the process accepts connections at these addresses.
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
				return fmt.Errorf("%s ended before it listened at %s", p.name, address)
			case <-ctx.Done():
				return fmt.Errorf("%s does not listen at %s: %w", p.name, address, err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}
