// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package childproc runs parts of a test in other processes, so that tests can read the memory of
// another process. The test binary starts itself again, and parent and child exchange lines. A child
// can also restrict itself: [Deny] makes system calls fail as the filters of some services do, and
// [Stall] returns memory that blocks its readers.
//
// The package is for tests only.
package childproc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// roleKey is the environment variable that makes the test binary a child with this role.
const roleKey = "OTELCTX_TEST_CHILD"

// maxLine bounds the length of a line that parent and child exchange.
const maxLine = 64 << 20

// Main is the body of TestMain, and does not return. In a child it runs the child's role. In the parent
// it runs the tests, and fails if they leak a goroutine that ignore does not list.
func Main(m *testing.M, roles map[string]func(*Parent), ignore ...goleak.Option) {
	name, isChild := os.LookupEnv(roleKey)
	if !isChild {
		handleIgnored()
		goleak.VerifyTestMain(m, ignore...)
		return
	}
	role, ok := roles[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no role %q\n", name)
		os.Exit(2)
	}
	role(&Parent{lines: newScanner(os.Stdin)})
	os.Exit(0)
}

// handleIgnored handles the signals that are ignored under nohup or in a shell's background job. Otherwise
// the programs that tests start would inherit that, and tests could not interrupt them.
func handleIgnored() {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

func newScanner(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	return s
}

// Parent is a child's connection to its parent. It is not safe for concurrent use.
type Parent struct{ lines *bufio.Scanner }

// Send sends a line.
func (*Parent) Send(format string, args ...any) {
	if _, err := fmt.Printf(format+"\n", args...); err != nil {
		os.Exit(1)
	}
}

// Receive returns the next line. It returns false if the parent has exited or called [Child.Done].
func (p *Parent) Receive() (string, bool) {
	if !p.lines.Scan() {
		return "", false
	}
	return p.lines.Text(), true
}

// Must ends the child, and thus fails its test, if err is not nil.
func (*Parent) Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Child is a running child process. It is not safe for concurrent use.
type Child struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  *bufio.Scanner
	exited bool
	// stopped reports whether Stop was called last, and not Continue.
	stopped bool
}

// Command returns the command that runs a role in another process. It is for tests that do not
// communicate with that process through a [Child].
func Command(role string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self) //nolint:gosec // G204: the test binary itself
	// Exit at once: the race detector delays every exit by a second unless told otherwise.
	cmd.Env = append(os.Environ(), roleKey+"="+role, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	return cmd, nil
}

// Start starts a child in a role. prepare, if not nil, modifies the command before it starts. The
// child is killed at the end of the test.
func Start(t testing.TB, role string, prepare func(*exec.Cmd)) *Child {
	t.Helper()
	cmd, err := Command(role)
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(cmd)
	}
	return Run(t, cmd)
}

// Run starts any command as a child, which exchanges lines with the test by its standard input and
// output. The process is killed at the end of the test.
func Run(t testing.TB, cmd *exec.Cmd) *Child {
	t.Helper()
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	cmd.WaitDelay = testenv.Patience
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &Child{t: t, cmd: cmd, stdin: stdin, lines: newScanner(stdout)}
	t.Cleanup(c.Kill)
	return c
}

// PID returns the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Send sends a line. It fails the test if the child has exited.
func (c *Child) Send(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.stdin, format+"\n", args...); err != nil {
		c.t.Fatalf("send to child: %v", err)
	}
}

// Receive returns the next line. It fails the test if the child exits first.
func (c *Child) Receive() string {
	c.t.Helper()
	if !c.lines.Scan() {
		err := c.lines.Err()
		c.Kill()
		c.t.Fatalf("child exited: %v, %v", err, c.cmd.ProcessState)
	}
	return c.lines.Text()
}

// Expect fails the test if the next line is not want.
func (c *Child) Expect(want string) {
	c.t.Helper()
	if got := c.Receive(); got != want {
		c.t.Fatalf("child sent %q, want %q", got, want)
	}
}

// Ask sends a line and returns the answer.
func (c *Child) Ask(format string, args ...any) string {
	c.t.Helper()
	c.Send(format, args...)
	return c.Receive()
}

// Done closes the child's input and waits until it exits. It fails the test if the child fails.
func (c *Child) Done() {
	c.t.Helper()
	if c.exited {
		return
	}
	c.exited = true
	_ = c.stdin.Close()
	timeout := time.AfterFunc(testenv.Patience, func() { _ = c.cmd.Process.Kill() })
	defer timeout.Stop()
	var rest strings.Builder
	for c.lines.Scan() {
		rest.WriteString(c.lines.Text())
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("child: %v; its last output was %q", err, rest.String())
	}
}

// Kill kills the child with SIGKILL and waits for it.
func (c *Child) Kill() {
	if c.exited {
		return
	}
	c.exited = true
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}
