// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// asKey is the environment variable that makes the test binary run as another program. notesKey is the
// environment variable with the path of the file to which such a program logs its events.
const (
	asKey    = "ECOSYSTEM_TEST_AS"
	notesKey = "ECOSYSTEM_TEST_NOTES"
)

func TestMain(m *testing.M) {
	switch as := os.Getenv(asKey); as {
	case "":
		os.Exit(m.Run())
	case "ecosystem":
		main()
	default:
		if err := standIn(as); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// standIn takes the place of the collector or the service, depending on its argument. It waits for
// SIGTERM.
func standIn(as string) error {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM)
	if as == "service" {
		if err := note(as, "for", os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), os.Args[1:]); err != nil {
			return err
		}
		fmt.Printf("pid=%d\n", os.Getpid())
	} else {
		grpc, http := os.Getenv("COLLECTOR_GRPC_ENDPOINT"), os.Getenv("COLLECTOR_HTTP_ENDPOINT")
		if err := note(as, "at", grpc, http, os.Getenv("COLLECTOR_DIR"), os.Args[1:]); err != nil {
			return err
		}
		for _, address := range []string{grpc, http} {
			l, err := net.Listen("tcp", address)
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }()
		}
	}
	<-ends
	return note(as, "ends")
}

func note(words ...any) error {
	path := os.Getenv(notesKey)
	if path == "" {
		return nil
	}
	notes, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(notes, words...)
	if failed := notes.Close(); err == nil {
		err = failed
	}
	return err
}

// self returns the path of a script that runs the test binary as another program.
func self(t *testing.T, as string) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return programs.Script(t, asKey+"="+as+` exec "`+exe+`" "$@"`)
}

// ecosystem runs the command to its end, with environ added to the environment.
func ecosystem(t *testing.T, environ []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), self(t, "ecosystem"), args...)
	command.Env = append(os.Environ(), environ...)
	return programs.Run(t, command)
}

// TestOrder checks that the programs get each other's addresses, and that they are stopped in an order
// that loses no data.
func TestOrder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "notes")
	notes := func(program string) string {
		return programs.Script(t, `echo "`+program+` [$*]" >>"$`+notesKey+`"; echo "said by `+program+`"`)
	}
	stdout, stderr, code := ecosystem(t, []string{notesKey + "=" + file}, "-dir", dir, "-duration", "7s", "-freq", "99",
		"-collector", self(t, "collector"), "-quickstart", self(t, "service"), "-otelctx", notes("otelctx"), "-join", notes("join"))
	require.Zero(t, code, stderr)
	noted, err := os.ReadFile(file)
	require.NoError(t, err)
	parts := regexp.MustCompile(`^collector at (\S+) (\S+) (?s:.*)\[record (\d+) `).FindStringSubmatch(string(noted))
	require.Len(t, parts, 4, string(noted))
	grpc, http, pid := parts[1], parts[2], parts[3]
	assert.NotEqual(t, grpc, http)
	assert.Equal(t, strings.NewReplacer("GRPC", grpc, "HTTP", http, "PID", pid, "DIR", dir).Replace(
		`collector at GRPC HTTP DIR [--feature-gates=service.profilesSupport]
service for http://HTTP [-serve]
otelctx [record PID --duration 7s --freq 99 --top 3 --otlp-endpoint http://GRPC]
service ends
collector ends
join [DIR/traces.jsonl DIR/profiles.jsonl]
`), string(noted))
	assert.Regexp(t, `(?s)^\nA collector starts.*\n\$ COLLECTOR_DIR=.*\nA service starts.*\n\$ OTEL_.*\notelctx samples process `+pid+
		` for 7s.*\n\$ script record .*\nsaid by otelctx\n.*\n\$ script .*\nsaid by join\n$`, stdout)
}

// TestFails checks that the failure of any program is reported and leaves no files behind.
func TestFails(t *testing.T) {
	fails, succeeds := programs.Script(t, "exit 7"), programs.Script(t, "exit 0")
	// A test case overrides one of these flags, because the last occurrence of a flag wins.
	usual := []string{"-collector", self(t, "collector"), "-quickstart", self(t, "service"), "-otelctx", succeeds, "-join", succeeds}
	// badly returns a program that fails when it gets SIGTERM.
	badly := func(as string) string {
		exe, err := os.Executable()
		require.NoError(t, err)
		return programs.Script(t, "trap 'kill $!; wait $!; exit 7' TERM; "+asKey+"="+as+` "`+exe+`" "$@" & wait $!`)
	}
	for name, test := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no collector":                          {[]string{"-collector", "none"}, "executable file not found", 1},
		"the collector ends":                    {[]string{"-collector", fails}, "ended before it listened", 1},
		"the collector ends badly":              {[]string{"-collector", badly("collector")}, "exit status 7", 1},
		"the service ends":                      {[]string{"-quickstart", fails}, "the service has ended before it served", 1},
		"the service ends badly":                {[]string{"-quickstart", badly("service")}, "exit status 7", 1},
		"the service prints an unexpected line": {[]string{"-quickstart", programs.Script(t, "echo hello; exec sleep 60")}, `the service said "hello", not pid=`, 1},
		"recording fails":                       {[]string{"-otelctx", fails}, "exit status 7", 1},
		"recording not permitted":               {[]string{"-otelctx", programs.Script(t, "echo not permitted >&2; exit 4")}, "not permitted", exitNotPermitted},
		"joining fails":                         {[]string{"-join", fails}, "exit status 7", 1},
	} {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			_, stderr, code := ecosystem(t, []string{"TMPDIR=" + temp}, append(usual, test.args...)...)
			assert.Equal(t, test.code, code, stderr)
			assert.Contains(t, stderr, test.want)
			left, err := os.ReadDir(temp)
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

// TestProcessEndsEarly checks that stop returns an error if the process has ended by itself, even
// with exit code 0.
func TestProcessEndsEarly(t *testing.T) {
	p := newProcess(t.Context(), nil, programs.Script(t, "exit 0"))
	require.NoError(t, p.start())
	<-p.ended
	assert.ErrorContains(t, p.stop(), "ended too early: exit status 0")
}
