// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// readyWithin is the maximum time that a server may take to start. It is long enough for a busy
	// machine.
	readyWithin = 2 * time.Minute
	// attempts is the maximum number of attempts to start a server. An attempt fails if another
	// process takes the port first.
	attempts = 3
)

// start runs a server until the end of the test and returns its addresses, one for each of its
// ports. command returns the command that makes the server listen at given addresses. start waits
// until http://address/path, at the first address, answers without a server error.
func start(t *testing.T, ports int, path string, command func(addresses []string) *exec.Cmd) (addresses []string) {
	t.Helper()
	for range attempts {
		addresses = freeAddresses(t, ports)
		cmd := command(addresses)
		if _, ended := launch(t, cmd); awaitReady(t, "http://"+addresses[0]+path, ended) {
			return addresses
		}
	}
	t.Fatal("the server exited")
	return nil
}

// launch starts a command, and kills it at the end of the test if it still runs. ended is closed when it has ended, and
// log has its output then. If the test fails, the last lines are logged.
func launch(t *testing.T, cmd *exec.Cmd) (log *strings.Builder, ended <-chan struct{}) {
	t.Helper()
	log = new(strings.Builder)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("log of %s:\n%s", filepath.Base(cmd.Path), tail(log.String()))
		}
	})
	return log, exited
}

// tail returns the last lines of a log.
func tail(text string) string {
	const most = 60
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// freeAddresses returns n addresses on ports that are currently free.
func freeAddresses(t *testing.T, n int) (addresses []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }() // keep all listeners open until the end, so that the ports differ
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}

// awaitReady waits until the server answers at url. It returns false if the server exits first.
func awaitReady(t *testing.T, url string, ended <-chan struct{}) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		require.NoError(t, err)
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode < http.StatusInternalServerError {
				return true
			}
		}
		select {
		case <-ended:
			return false
		case <-ctx.Done():
			t.Fatalf("%s is not ready after %v", url, readyWithin)
		case <-tick.C:
		}
	}
}

// ask sends a request and decodes the JSON answer.
func ask(t *testing.T, request *http.Request, answer any) {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", request.URL, body)
	require.NoError(t, json.Unmarshal(body, answer), string(body))
}
