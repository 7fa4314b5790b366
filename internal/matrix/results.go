// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/internal/matrix/plan"
)

// run is what a machine has told.
type run struct {
	facts    map[string]string
	programs []*program
	// done says that everything was run.
	done bool
	// failed is why the guest gave up.
	failed string
	// stray are lines between the programs, from when there are facts: the kernel's, which
	// has been told to be quiet unless it is in trouble.
	stray []string
}

// program is what became of a program.
type program struct {
	name string
	// ended says that it came to an end: code is its exit code, or -1.
	ended         bool
	code, seconds int
	output        []byte
	tests         []test
}

// test is a test, or a part of one, by its full name.
type test struct {
	name string
	// outcome is pass, fail or skip; empty if it did not come to an end.
	outcome string
	// why is the reason of a skip.
	why string
}

// parse reads what came from a machine's console.
func parse(console []byte) (*run, error) {
	r := &run{facts: map[string]string{}}
	var current *program
	for line := range strings.Lines(string(console)) {
		line = strings.TrimRight(line, "\r\n")
		// What is written before the kernel has a console of lines may stand before.
		marker := ""
		if i := strings.Index(line, "@@matrix "); i >= 0 {
			marker = line[i:]
		}
		switch {
		case strings.HasPrefix(marker, plan.Start):
			current = &program{name: strings.TrimPrefix(marker, plan.Start)}
			r.programs = append(r.programs, current)
		case strings.HasPrefix(marker, plan.End):
			fields := strings.Fields(strings.TrimPrefix(marker, plan.End))
			if current == nil || len(fields) != 3 || fields[0] != current.name {
				return nil, fmt.Errorf("out of place: %q", line)
			}
			var err, err2 error
			current.code, err = strconv.Atoi(fields[1])
			current.seconds, err2 = strconv.Atoi(fields[2])
			if err := errors.Join(err, err2); err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			current.ended = true
			current = nil
		case strings.HasPrefix(marker, plan.Fact):
			name, value, _ := strings.Cut(strings.TrimPrefix(marker, plan.Fact), " ")
			r.facts[name] = value
		case strings.HasPrefix(marker, plan.Failed):
			r.failed = strings.TrimPrefix(marker, plan.Failed)
		case strings.HasPrefix(marker, plan.Done):
			r.done = true
		case current != nil:
			current.output = append(append(current.output, line...), '\n')
		case len(r.facts) > 0 && strings.TrimSpace(line) != "" && !r.done:
			r.stray = append(r.stray, line)
		}
	}
	return r, nil
}

// event is one of those of go tool test2json.
type event struct {
	Action string `json:"Action"`
	Test   string `json:"Test"`
	Output string `json:"Output"`
}

// decode finds out what became of the tests in the program's output.
func (p *program) decode(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json")
	cmd.Stdin = bytes.NewReader(p.output)
	out, err := output(cmd)
	if err != nil {
		return err
	}
	tests := map[string]*test{}
	var order []string
	for events := json.NewDecoder(strings.NewReader(out)); ; {
		var e event
		err := events.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("test2json: %w", err)
		}
		if e.Test == "" {
			continue
		}
		t := tests[e.Test]
		if t == nil {
			t = &test{name: e.Test}
			tests[e.Test] = t
			order = append(order, e.Test)
		}
		switch e.Action {
		case "pass", "fail", "skip":
			t.outcome = e.Action
		case "output":
			if match := logged.FindStringSubmatch(e.Output); match != nil {
				t.why = match[1]
			}
		}
	}
	for _, name := range order {
		p.tests = append(p.tests, *tests[name])
	}
	return nil
}

// logged is a line that a test has logged: the last one of a test that was skipped says
// why.
var logged = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)\n$`)

// excuse is a reason for which tests may be skipped in a machine.
type excuse struct {
	// why is in what the test says.
	why *regexp.Regexp
	// lacks is what the machine lacks, as the report says it.
	lacks string
	// holds reports whether the machine does lack it; nil if all of them do.
	holds func(b *bootable) (bool, error)
}

// excuses are all reasons for which tests may be skipped.
var excuses = []excuse{
	{
		why: regexp.MustCompile("CONFIG_" + optionNames), lacks: "CONFIG_" + optionNames,
		holds: func(b *bootable) (bool, error) {
			has, err := b.has(optionNames)
			return !has, err
		},
	},
	{why: regexp.MustCompile(`no go tool`), lacks: "the go tool, to build programs with"},
	{why: regexp.MustCompile(`no C compiler`), lacks: "a C compiler"},
	{why: regexp.MustCompile(`^no (bash|fish|zsh)$`), lacks: "a shell that completes commands"},
	{why: regexp.MustCompile(`no unshare command`), lacks: "the unshare command"},
	{why: regexp.MustCompile(`an emulated processor's timer is late`), lacks: "timers that are in time"},
	{why: regexp.MustCompile(`an emulated recorder has not looked yet`), lacks: "the speed to look at processes that live 400 ms"},
	{why: regexp.MustCompile(`has no thread-local (memory|storage)`), lacks: "thread-local memory, which programs for arm64 have with cgo only"},
	{why: regexp.MustCompile(`goroutines are found in a register`), lacks: "a need for thread-local memory, which is not looked at on arm64"},
	{why: regexp.MustCompile(`not built with -race, nor with the tag invariants`), lacks: "checks that programs are built with"},
	{why: regexp.MustCompile(`only make test-all runs this`), lacks: "time, unless it is run with -all"},
	// What no machine has.
	{why: regexp.MustCompile(`this platform is supported`), lacks: "nothing: the test is for platforms without support"},
	{why: regexp.MustCompile(`there is no such assembly`), lacks: "nothing: not each combination has assembly to be tested"},
	{why: regexp.MustCompile(`loads through a wrong pointer cannot be made safe`), lacks: "nothing: not each fact of the runtime can be got wrong safely"},
}

// excused returns what a machine lacks if that explains a skip.
func (b *bootable) excused(t test) (lacks string, ok bool, err error) {
	for _, e := range excuses {
		if !e.why.MatchString(t.why) {
			continue
		}
		if e.holds != nil {
			if holds, err := e.holds(b); err != nil || !holds {
				return "", false, err
			}
		}
		return e.lacks, true, nil
	}
	return "", false, nil
}
