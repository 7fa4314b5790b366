// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience is the time limit for starting and stopping the service.
const patience = 30 * time.Second

// child is the service in its own process.
type child struct {
	pid int
	url string

	command *exec.Cmd
	cancel  context.CancelFunc
}

// startService starts the service from the running executable, and returns once it serves.
func startService(ctx context.Context) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	command := exec.CommandContext(ctx, self, "-serve") //nolint:gosec // It is the running executable.
	c := &child{command: command, cancel: cancel}
	c.command.Stderr = os.Stderr
	c.command.Cancel = func() error { return c.command.Process.Signal(syscall.SIGTERM) }
	c.command.WaitDelay = patience
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		cancel()
		return nil, err
	}
	// If the service hangs, stop it. That closes its output, so greeting returns.
	timeout := time.AfterFunc(patience, cancel)
	defer timeout.Stop()
	if err := c.greeting(bufio.NewScanner(stdout)); err != nil {
		return nil, errors.Join(fmt.Errorf("start the service: %w", err), c.stop())
	}
	return c, nil
}

// greeting reads the two lines that the service prints.
func (c *child) greeting(lines *bufio.Scanner) error {
	pid, err := greetingLine(lines, "pid=")
	if err != nil {
		return err
	}
	if c.pid, err = strconv.Atoi(pid); err != nil {
		return err
	}
	c.url, err = greetingLine(lines, "url=")
	return err
}

func greetingLine(lines *bufio.Scanner, prefix string) (string, error) {
	if !lines.Scan() {
		return "", errors.Join(fmt.Errorf("it ended before it printed %s", prefix), lines.Err())
	}
	value, ok := strings.CutPrefix(lines.Text(), prefix)
	if !ok {
		return "", fmt.Errorf("it printed %q, expected %s", lines.Text(), prefix)
	}
	return value, nil
}

// stop ends the service and returns an error if it failed.
func (c *child) stop() error {
	c.cancel()
	err := c.command.Wait()
	if c.command.ProcessState.Success() {
		// Wait's error only says that the context is done.
		return nil
	}
	return fmt.Errorf("the service: %w", err)
}
