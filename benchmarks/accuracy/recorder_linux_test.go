// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// recorder is otelctx record, as a user has it.
type recorder struct{ exe, dir string }

// buildRecorder builds it. The test is skipped, with what is missing, if this user may
// not record.
func buildRecorder(t *testing.T) recorder {
	t.Helper()
	r := recorder{exe: programs.Build(t, programs.Static, "../../cmd/otelctx", "."), dir: t.TempDir()}
	out, err := exec.Command(r.exe, "record", "--", "true").CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == exitNotPermitted {
		t.Skip(string(out))
	}
	require.NoError(t, err, "%s", out)
	return r
}

// recording is a recorder that runs.
type recording struct {
	cmd            *exec.Cmd
	file           string
	stdout, stderr bytes.Buffer
}

// start starts it, with OTLP for its output. It is killed at the end of the test.
func (r recorder) start(t *testing.T, args ...string) *recording {
	t.Helper()
	return r.startTo(t, "profile.otlp", args...)
}

// startTo starts it with an output in the format that name ends in.
func (r recorder) startTo(t *testing.T, name string, args ...string) *recording {
	t.Helper()
	one := &recording{file: filepath.Join(r.dir, name)}
	args = append([]string{"record", "--json", "--top=1", "--output", one.file}, args...)
	one.cmd = exec.Command(r.exe, args...)
	one.cmd.Stdout, one.cmd.Stderr = &one.stdout, &one.stderr
	require.NoError(t, one.cmd.Start())
	t.Cleanup(func() { _ = one.cmd.Process.Kill() })
	return one
}

func (r *recording) pid() int { return r.cmd.Process.Pid }

// interrupt ends the recording.
func (r *recording) interrupt(t *testing.T) { require.NoError(t, r.cmd.Process.Signal(syscall.SIGINT)) }

// result is what comes of a recording.
type result struct {
	// What otelctx record --json says.
	Samples, Lost           int
	profilespb.ProfilesData `json:"-"`
	// used is the processor time that the recorder has used.
	used time.Duration
}

// exitNotPermitted is the exit code that says that a capability is missing.
const exitNotPermitted = 4

// wait waits for the end of a recording, which must be a good one, and reads the OTLP.
func (r *recording) wait(t *testing.T) *result {
	t.Helper()
	one := r.end(t)
	b, err := os.ReadFile(r.file)
	require.NoError(t, err)
	require.NoError(t, proto.Unmarshal(b, &one.ProfilesData))
	return one
}

// end is wait without the OTLP.
func (r *recording) end(t *testing.T) *result {
	t.Helper()
	err := r.cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == exitNotPermitted {
		t.Skip(r.stderr.String())
	}
	require.NoError(t, err, r.stderr.String())
	one := &result{used: r.cmd.ProcessState.UserTime() + r.cmd.ProcessState.SystemTime()}
	require.NoError(t, json.Unmarshal(r.stdout.Bytes(), one))
	return one
}

// sampling waits until it samples, if only just.
func (r *recording) sampling(t *testing.T) {
	t.Helper()
	r.descriptor(t, func(_, to string) bool { return to == "anon_inode:[perf_event]" })
}

// descriptor waits until the recorder has a descriptor of a kind, and returns its number.
func (r *recording) descriptor(t *testing.T, is func(fd, to string) bool) string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", r.pid())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the recorder does not begin")
		fds, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && is(fd.Name(), to) {
				return fd.Name()
			}
		}
	}
}

// observation is what a recording says of a moment.
type observation struct {
	// names are the functions of the stack, the innermost first.
	names []string
	// given is the span that is said, zeros for none.
	given span
	// proven is not known of no span.
	proven bool
	// app is the attribute http.app.
	app string
}

// observations calls f with what a recording says of a process, and with how many times.
func (r *result) observations(pid int, f func(observation, int)) {
	d := r.GetDictionary()
	for _, rp := range r.GetResourceProfiles() {
		if pidOf(rp.GetResource().GetAttributes()) != pid {
			continue
		}
		for _, sp := range rp.GetScopeProfiles() {
			for _, p := range sp.GetProfiles() {
				for _, s := range p.GetSamples() {
					f(observe(d, s), len(s.GetTimestampsUnixNano()))
				}
			}
		}
	}
}

func pidOf(attributes []*commonpb.KeyValue) int {
	for _, kv := range attributes {
		if kv.GetKey() == "process.pid" {
			return int(kv.GetValue().GetIntValue())
		}
	}
	return 0
}

func observe(d *profilespb.ProfilesDictionary, s *profilespb.Sample) observation {
	o := observation{proven: true}
	for _, i := range d.GetStackTable()[s.GetStackIndex()].GetLocationIndices() {
		lines := d.GetLocationTable()[i].GetLines()
		if len(lines) == 0 {
			o.names = append(o.names, "?")
		}
		for _, line := range lines {
			o.names = append(o.names, d.GetStringTable()[d.GetFunctionTable()[line.GetFunctionIndex()].GetNameStrindex()])
		}
	}
	link := d.GetLinkTable()[s.GetLinkIndex()]
	copy(o.given.trace[:], link.GetTraceId())
	copy(o.given.span[:], link.GetSpanId())
	for _, i := range s.GetAttributeIndices() {
		a := d.GetAttributeTable()[i]
		switch d.GetStringTable()[a.GetKeyStrindex()] {
		case "otelctx.span.unproven":
			o.proven = !a.GetValue().GetBoolValue()
		case appKey:
			o.app = a.GetValue().GetStringValue()
		}
	}
	return o
}
