// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelattribute "go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/conformance"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		roleUpdating: update, busyservice.Role: busyservice.Run, "payload": publishPayload, "idle": idleService, "stuck": stuck,
	})
}

// roleUpdating is a Go program that publishes a resource, and replaces it for each line "update".
const roleUpdating = "updating"

func update(parent *childproc.Parent) {
	named := func(version int) *resource.Resource {
		return resource.NewSchemaless(otelattribute.String("service.name", "updating"), otelattribute.Int("version", version))
	}
	publisher, err := resourcepublisher.New(named(0))
	parent.Must(err)
	parent.Send("ready")
	for version := 1; ; version++ {
		line, ok := parent.Receive()
		if !ok {
			return
		}
		if line == "update" {
			parent.Must(publisher.Update(named(version)))
		}
		parent.Send("done")
	}
}

// startPublisher starts a correct publisher: the C program, or a Go program if program is "".
func startPublisher(t *testing.T, program string) *childproc.Child {
	t.Helper()
	if program == "" {
		child := childproc.Start(t, roleUpdating, nil)
		child.Expect("ready")
		return child
	}
	return startBroken(t, program, "")
}

// startBroken starts the C program with a defect.
func startBroken(t *testing.T, program, defect string) *childproc.Child {
	t.Helper()
	cmd := exec.Command(program, "3")
	cmd.Env = append(os.Environ(), "BREAK="+defect)
	child := childproc.Run(t, cmd)
	if defect == "the timestamp comes first" {
		child.Send("go") // The publisher must start to publish during the check.
		return child
	}
	for child.Receive() != "ready" {
	}
	child.Ask("fork")
	return child
}

const source = "../../../../reader/testdata/threadcontext/publisher.c"

// broken maps each defect of a publisher to the rules that must fail because of it. Other rules may fail as
// well.
var broken = map[string][]string{
	"another signature":                     {"4719-H1"},
	"no signature":                          {"4719-H1", "4719-P9"},
	"version 3":                             {"4719-H2"},
	"version 0":                             {"4719-H2", "4719-P9"},
	"no payload":                            {"4719-H5", "4719-P9"},
	"the payload is not mapped":             {"4719-H5"},
	"the payload is endless":                {"4719-H5", "4719-H6"},
	"a large payload":                       {"4719-H6"},
	"wall clock":                            {"4719-H4"},
	"an hour ahead":                         {"4719-H4"},
	"the timestamp stays zero":              {"4719-H3"},
	"the timestamp comes first":             {"4719-P9"},
	"the payload is no message":             {"4719-D1"},
	"the payload is cut":                    {"4719-D1"},
	"a resource key twice":                  {"4719-D2"},
	"an attribute key twice":                {"4719-D2"},
	"an empty key":                          {"4719-D3"},
	"no service.name":                       {"4719-D3"},
	"service.name is a number":              {"4719-D3"},
	"no resource":                           {"4719-D3"},
	"the descriptor survives exec":          {"4719-P2", "4719-P3b"},
	"the descriptor stays open":             {"4719-P3b"},
	"the mapping is shared":                 {"4719-P3"},
	"the mapping is executable":             {"4719-P3"},
	"the mapping is read-only":              {"4719-P3"},
	"children inherit the mapping":          {"4719-P5", "4719-F1"},
	"two contexts":                          {"4719-P11"},
	"an update moves the header":            {"4719-U1"},
	"an update keeps the timestamp":         {"4719-U2"},
	"an update does not zero the timestamp": {"4719-U2"},
	"the payload changes in place":          {"4719-U2"},
	"an update goes back in time":           {"4719-U6"},
	"an update does not name the mapping":   {"4719-U7"},
	"the schema is a number":                {"4947-R1"},
	"a key is a number":                     {"4947-R2"},
	"the key map is a string":               {"4947-R2"},
	"the key map is too large":              {"4947-R2"},
	"the key map shrinks":                   {"4947-R3"},
	"the key map is reordered":              {"4947-R3"},
	"a wild record":                         {"4947-C1"},
	"the record is at an odd address":       {"4947-C2"},
	"valid is 2":                            {"4947-C3"},
	"no trace id":                           {"4947-C4"},
	"no span id":                            {"4947-C4"},
	"flags without ids":                     {"4947-C5"},
	"an attribute is cut":                   {"4947-C6"},
	"half an attribute":                     {"4947-C6"},
	"an unknown key":                        {"4947-C7"},
	"a value is not UTF-8":                  {"4947-C8"},
	"a long record":                         {"4947-C9"},
}

// verify checks a publisher, which it updates during the check if updated is true. It returns the ids of the
// rules by status. On a busy machine, the check may end before it has found the context, or read it between two updates.
func verify(t *testing.T, child *childproc.Child, updated bool, d time.Duration) map[conformance.Status][]string {
	t.Helper()
	type outcome struct {
		results []conformance.Result
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		r, err := conformance.Process(t.Context(), child.PID(), d)
		done <- outcome{r, err}
	}()
	var got outcome
	for waiting := true; waiting; {
		select {
		case got = <-done:
			waiting = false
		default:
			if updated {
				child.Ask("update")
			}
			time.Sleep(time.Millisecond) // Leave the processor to the check.
		}
	}
	if !errors.Is(got.err, reader.ErrNoContext) && !errors.Is(got.err, reader.ErrBusy) {
		assert.NoError(t, got.err)
	}
	rules := map[conformance.Status][]string{}
	for _, r := range got.results {
		rules[r.Status] = append(rules[r.Status], r.ID)
		if r.Status == conformance.Failed {
			assert.NotEmpty(t, r.Evidence, r.ID)
		}
	}
	return rules
}

// TestBroken checks that each defect is reported as a violation of the right rules.
func TestBroken(t *testing.T) {
	program := programs.C(t, source, "-pthread", "-rdynamic")
	for _, defect := range slices.Sorted(maps.Keys(broken)) {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			d := 100 * time.Millisecond
			switch defect {
			case "the key map shrinks", "the key map is reordered": // It is read every second.
				d = 1100 * time.Millisecond
			case "the timestamp comes first": // The publisher starts to publish during the check.
				d = 6 * time.Second
			case "an update does not name the mapping":
				needTracefs(t)
			}
			requireFailed(t, func() *childproc.Child { return startBroken(t, program, defect) }, broken[defect], defect != "the timestamp comes first", d)
		})
	}
	for name, flags := range map[string][]string{
		"the symbol is not exported":    {"-pthread"},
		"the symbol is no thread-local": {"-pthread", "-rdynamic", "-DNOT_THREAD_LOCAL"},
	} {
		program := programs.C(t, source, flags...)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireFailed(t, func() *childproc.Child { return startPublisher(t, program) }, []string{"4947-V1"}, true, 2*time.Second)
		})
	}
}

// requireFailed checks publishers for d each until all of these rules have failed. On a busy machine a short check may
// find no context that has just moved, read none, or see no updates, so each check takes longer than the previous one.
func requireFailed(t *testing.T, start func() *childproc.Child, missed []string, updated bool, d time.Duration) {
	t.Helper()
	for ; len(missed) > 0; d *= 4 {
		require.Less(t, d, testenv.Patience, "rules that did not fail: %v", missed)
		failed := verify(t, start(), updated, d)[conformance.Failed]
		missed = slices.DeleteFunc(slices.Clone(missed), func(rule string) bool { return slices.Contains(failed, rule) })
	}
}

// languages lists the correct publishers.
var languages = map[string]func(*testing.T) (program string){
	"C":  func(t *testing.T) string { return programs.C(t, source, "-pthread", "-rdynamic") },
	"Go": func(*testing.T) string { return "" },
}

// TestCorrect checks that no rule fails for a correct publisher that updates its context all the time.
func TestCorrect(t *testing.T) {
	for language, program := range languages {
		t.Run(language, func(t *testing.T) {
			rules := verify(t, startPublisher(t, program(t)), true, 2*time.Second)
			assert.Empty(t, rules[conformance.Failed])
			assert.NotEmpty(t, rules[conformance.Passed])
		})
	}
}

// TestTracedProcess checks that no rule fails for a correct publisher while the recorder or another tool
// traces prctl. If the tool hides the calls, the rule that counts them must be reported as not exercised.
func TestTracedProcess(t *testing.T) {
	needTracefs(t)
	for name, c := range map[string]struct {
		naming conformance.Status
		trace  func(*testing.T) io.Closer
	}{
		"by the recorder": {conformance.Passed, func(t *testing.T) io.Closer {
			s, err := sampler.Open(sampler.Config{Frequency: 1})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			changes, err := s.Changes(sampler.ChangesConfig{Publications: true})
			require.NoError(t, err)
			return changes
		}},
		"by a tool that hides calls": {conformance.NotExercised, func(t *testing.T) io.Closer {
			hide, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Type: ebpf.TracePoint, License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
			})
			require.NoError(t, err)
			attached, err := link.Tracepoint("syscalls", "sys_enter_prctl", hide, nil)
			require.NoError(t, err)
			require.NoError(t, hide.Close())
			return attached
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tracer := c.trace(t)
			defer func() { require.NoError(t, tracer.Close()) }()
			rules := verify(t, startPublisher(t, ""), true, 300*time.Millisecond)
			assert.Empty(t, rules[conformance.Failed])
			assert.Contains(t, rules[c.naming], "4719-U7")
		})
	}
}

func needTracefs(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/kernel/tracing/events/syscalls/sys_enter_prctl/id"); err != nil {
		t.Skip("needs a mounted tracefs, and root to read it: ", err)
	}
}

// TestCorrectRepeatedly checks that no rule fails for correct publishers, however often they are checked: C
// programs whose contexts and records change all the time, and Go programs with spans.
func TestCorrectRepeatedly(t *testing.T) {
	for name, c := range map[string]struct {
		start     func(*testing.T) *childproc.Child
		updated   bool
		exercised []string
	}{
		"C": {func(t *testing.T) *childproc.Child {
			cmd := exec.Command(programs.C(t, source, "-pthread", "-rdynamic"), "3")
			cmd.Env = append(os.Environ(), "CHURN=1")
			child := childproc.Run(t, cmd)
			for child.Receive() != "ready" {
			}
			return child
		}, true, []string{"4719-U6", "4719-U7", "4947-C7"}},
		"Go": {func(t *testing.T) *childproc.Child {
			child := childproc.Start(t, busyservice.Role, nil)
			child.Send(busyservice.Words(busyservice.Records, busyservice.GoroutineTable))
			child.Receive()
			return child
		}, false, []string{"otelctx-3"}},
		"Go, updated": {func(t *testing.T) *childproc.Child { return startPublisher(t, "") }, true, []string{"4719-U6", "4719-U7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const publishers = 4
			var exercised sync.Map
			var checking sync.WaitGroup
			for range publishers {
				child := c.start(t)
				checking.Go(func() {
					for range testenv.Rounds(2, 125) {
						for status, rules := range verify(t, child, c.updated, 100*time.Millisecond) {
							assert.NotEqual(t, conformance.Failed, status, rules)
							for _, id := range rules {
								if status == conformance.Passed {
									exercised.Store(id, true)
								}
							}
						}
					}
				})
			}
			checking.Wait()
			for _, id := range c.exercised {
				t.Run(id+" was exercised", func(t *testing.T) {
					if id == "4719-U7" {
						needTracefs(t)
					}
					_, ok := exercised.Load(id)
					assert.True(t, ok)
				})
			}
		})
	}
}

// TestNoContext checks that the error for a process that publishes nothing is ErrNoContext.
func TestNoContext(t *testing.T) {
	_, err := conformance.Process(t.Context(), os.Getpid(), 50*time.Millisecond)
	assert.ErrorIs(t, err, reader.ErrNoContext)
	require.Error(t, err)
}
