// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command is a started program. It is stopped before its first instruction until Resume. It is safe for
// concurrent use.
type Command struct {
	process *os.Process
	// resume is closed to let the program run. detached then receives the error, if any.
	resume   chan struct{}
	once     sync.Once
	detached chan error
	ended    chan struct{}
	status   syscall.WaitStatus // valid once ended is closed
}

// Start starts the program argv[0], which it looks up like a shell, and stops it before its first
// instruction until Resume or Kill. One of these must be called.
//
// The error wraps [ErrNotFound], [ErrNotExecutable] or [ErrNotPermitted], or says why the started program
// could not be stopped.
func Start(argv []string) (*Command, error) {
	path, err := exec.LookPath(argv[0])
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // found in the current directory, which PATH contains
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	default:
		return nil, fmt.Errorf("%w: %w", ErrNotExecutable, err)
	}
	c := &Command{resume: make(chan struct{}), detached: make(chan error, 1), ended: make(chan struct{})}
	started := make(chan error)
	go c.trace(path, argv, started)
	return c, <-started
}

// trace starts the program, detaches from it when requested, and waits for its end.
func (c *Command) trace(path string, argv []string, started chan<- error) {
	// Only the thread that started a program may trace it.
	runtime.LockOSThread()
	if err := c.start(path, argv); err != nil {
		started <- err
		return // The thread ends with its goroutine.
	}
	started <- nil
	<-c.resume
	if err := unix.PtraceDetach(c.process.Pid); err != nil {
		c.detached <- fmt.Errorf("PTRACE_DETACH: %w", err)
	}
	close(c.detached)
	runtime.UnlockOSThread()
	c.await()
}

func (c *Command) start(path string, argv []string) (err error) {
	c.process, err = os.StartProcess(path, argv, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Ptrace: true},
	})
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", ErrNotPermitted, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotExecutable, err)
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(c.process.Pid, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			_ = c.process.Kill()
			return fmt.Errorf("wait for %s to start: %w", argv[0], err)
		case !status.Stopped():
			return fmt.Errorf("%s has ended before its first instruction", argv[0])
		case status.StopSignal() == unix.SIGTRAP:
			return nil
		default:
			// A signal arrived before the exec. Pass it on and wait again.
			if err := unix.PtraceCont(c.process.Pid, int(status.StopSignal())); err != nil {
				_ = c.process.Kill()
				return fmt.Errorf("PTRACE_CONT: %w", err)
			}
		}
	}
}

// await waits for the end of the program.
func (c *Command) await() {
	defer close(c.ended)
	state, err := c.process.Wait()
	if err != nil {
		return
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok {
		c.status = status
	}
}

// PID returns the process id of the program.
func (c *Command) PID() int { return c.process.Pid }

// Resume lets the program run. Later calls do nothing.
func (c *Command) Resume() error {
	c.once.Do(func() { close(c.resume) })
	return <-c.detached
}

// Kill ends the program and waits for its end.
func (c *Command) Kill() {
	_ = c.process.Kill() // fails if the program has ended
	c.once.Do(func() { close(c.resume) })
	<-c.ended
}

// Ended is closed when the program has ended.
func (c *Command) Ended() <-chan struct{} { return c.ended }

// ExitCode returns the exit code of the program once it has ended. As in shells, that is 128 plus the
// signal number if a signal ended it.
func (c *Command) ExitCode() int {
	if c.status.Signaled() {
		const signaled = 128
		return signaled + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// forwarded lists the signals that are passed on.
var forwarded = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}

// PassSignals passes signals on to the program until stop is called. Signals that this process ignores are not
// passed on, and the program inherits this setting. In the foreground, SIGINT and SIGQUIT are not passed on,
// because the terminal sends them to the program as well.
func (c *Command) PassSignals() (stop func()) {
	signals := make(chan os.Signal, len(forwarded))
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	done, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				if (s == unix.SIGINT || s == unix.SIGQUIT) && inForeground() {
					continue
				}
				_ = c.process.Signal(s) // fails if the program has ended
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-finished
	}
}

// inForeground reports whether this process receives the signals typed at its terminal.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // This process has no terminal.
	}
	defer func() { _ = tty.Close() }()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
