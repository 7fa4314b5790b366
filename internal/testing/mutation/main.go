// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Command mutation measures what the tests catch. It breaks the code in one place at a
// time, runs the tests of that place, and says which breaks no test noticed.
//
//	go run ./internal/testing/mutation -o results.jsonl    # with the tests of make test
//
// It takes hours, most of them for breaks that nobody notices. Run the tests of their own packages
// first, and all tests for what is left:
//
//	go run ./internal/testing/mutation -first -o first.jsonl
//	go run ./internal/testing/mutation -survivors first.jsonl -o rest.jsonl
//
// To compare two suites, such as those of two commits, run one over all breaks. Run the
// other over the breaks that the first one did not notice:
//
//	go run ./internal/testing/mutation -o new.jsonl
//	go run ./internal/testing/mutation -root old/checkout -race -survivors new.jsonl -o old.jsonl
//	go run ./internal/testing/mutation -all -race -survivors new.jsonl -o all.jsonl
//	go run ./internal/testing/mutation -compare new.jsonl old.jsonl all.jsonl
//
// The breaks are chosen by a hash of the code around them. So two runs over the same code
// choose the same ones, also when only the tests have changed in between. A run that is
// started again continues its file of results. The tree is never changed: the go command
// gets the broken file by its -overlay flag.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// result is what became of one mutant: a line of the results.
type result struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
	Place   string `json:"place"`
	Change  string `json:"change"`
	// Caught names the tests that failed, or says how else the run failed. It is empty
	// for a mutant that survived.
	Caught  string  `json:"caught,omitempty"`
	Seconds float64 `json:"seconds"`
}

func main() {
	log.SetFlags(0)
	var (
		root    = flag.String("root", ".", "the `directory` of the checkout")
		out     = flag.String("o", "", "append results to this `file`, and skip the mutants that it has")
		only    = flag.String("only", "", "subjects whose name matches this `regexp`")
		survive = flag.String("survivors", "", "only the mutants of which this `file` of results says that they survived")
		scale   = flag.Float64("scale", 1, "how many times the usual number of mutants")
		race    = flag.Bool("race", false, "run the first tests of a survivor once more, with the race detector")
		all     = flag.Bool("all", false, "run the tests as make test-all does")
		first   = flag.Bool("first", false, "run the tests of the mutant's own packages only, which notice most")
		list    = flag.Bool("list", false, "list the mutants only")
		compare = flag.Bool("compare", false, "compare the results of some tests with those of others for their survivors")
	)
	flag.Parse()
	if *compare {
		if err := compareResults(os.Stdout, flag.Args()); err != nil {
			log.Fatal(err)
		}
		return
	}
	r := &run{root: *root, race: *race, all: *all, known: map[string]result{}, survivors: map[string]result{}}
	err := r.prepare(*out, *survive)
	defer r.close()
	for _, s := range subjects {
		if err == nil && regexp.MustCompile(*only).MatchString(s.name) {
			s.mutants = int(float64(s.mutants) * *scale)
			if *first {
				s.tests = s.tests[:1]
			}
			err = r.subject(s, *list)
		}
	}
	if err != nil {
		r.close()
		log.Fatal(err) //nolint:gocritic // closed the line before
	}
}

// run is one measurement.
type run struct {
	root      string
	race, all bool
	known     map[string]result // by ID: what an earlier run has found
	survivors map[string]result // by ID: what another run has found; what it caught is skipped
	temp      string
	out       *os.File
}

func (r *run) prepare(out, survivors string) (err error) {
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if r.temp, err = os.MkdirTemp("", "mutation-"); err != nil {
		return err
	}
	if survivors != "" {
		if r.survivors, err = readResults(survivors); err != nil {
			return err
		}
	}
	if out == "" {
		r.out = os.Stdout
		return nil
	}
	if r.known, err = readResults(out); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.out, err = os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return err
}

func (r *run) close() { _ = os.RemoveAll(r.temp) }

// subject tests as many mutants of a subject as it asks for.
func (r *run) subject(s subject, list bool) error {
	mutants, err := s.find(r.root)
	if err != nil {
		return err
	}
	log.Printf("%s: %d places", s.name, len(mutants))
	n := 0
	for _, m := range mutants {
		if n == s.mutants {
			break
		}
		if other, ok := r.survivors[m.id]; len(r.survivors) > 0 && (!ok || other.Caught != "") {
			continue
		}
		if _, ok := r.known[m.id]; ok || list {
			n++
			if list {
				fmt.Println(m.id, s.name, m.place(), m.change)
			}
			continue
		}
		begin := time.Now()
		caught, valid, err := r.test(s, m)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", m.place(), m.change, err)
		}
		if !valid {
			continue // It does not compile: no test is needed.
		}
		n++
		res := result{m.id, s.name, m.place(), m.change, caught, time.Since(begin).Round(time.Second).Seconds()}
		if err := json.NewEncoder(r.out).Encode(res); err != nil {
			return err
		}
		log.Printf("%3d %s %s %s: %s", n, s.name, res.Place, res.Change, orSurvived(res.Caught))
	}
	return nil
}

func orSurvived(caught string) string {
	if caught == "" {
		return "SURVIVED"
	}
	return caught
}

// test runs the tests of a subject over a mutant until one fails. valid is false if the
// mutant does not compile.
func (r *run) test(s subject, m mutant) (caught string, valid bool, err error) {
	broken := filepath.Join(r.temp, "broken"+filepath.Ext(m.file))
	if err := os.WriteFile(broken, m.apply(), 0o644); err != nil {
		return "", false, err
	}
	replaced := m.file
	if filepath.Ext(m.file) == ".c" {
		if replaced, broken, err = r.compileBPF(m.file, broken); err != nil {
			return "", false, nil //nolint:nilerr // it does not compile
		}
	}
	overlay := filepath.Join(r.temp, "overlay.json")
	content, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, replaced): broken}})
	if err != nil {
		return "", false, err
	}
	if err := os.WriteFile(overlay, content, 0o644); err != nil {
		return "", false, err
	}
	// Programs that tests build are broken too.
	env := append(os.Environ(), "GOFLAGS=-overlay="+overlay)
	if r.all {
		env = append(env, "OTELCTX_TEST_ALL=1")
	}
	module := s.tests[0].module
	build := exec.Command("go", "build", "-o", os.DevNull, "./"+strings.TrimPrefix(strings.TrimPrefix(filepath.Dir(m.file), module), "/"))
	build.Dir, build.Env = filepath.Join(r.root, module), env
	if err := build.Run(); err != nil {
		return "", false, nil //nolint:nilerr // it does not compile
	}
	steps := s.tests
	if r.race {
		again := steps[0]
		again.race = true
		steps = append(slices.Clip(steps), again)
	}
	for _, step := range steps {
		failed, err := r.step(step, env)
		if err != nil || failed != "" {
			return failed, true, err
		}
	}
	return "", true, nil
}

// limit bounds the tests of one step. The slowest take a third of that.
const limit = 15 * time.Minute

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*|fatal error: .*|SIG\w+: .*)|^(WARNING: DATA RACE)`)

// step returns what failed, or "".
func (r *run) step(t tests, env []string) (string, error) {
	args := []string{"test", "-vet=off", "-failfast", "-timeout", limit.String()}
	if t.race {
		args, env = append(args, "-race"), append(slices.Clip(env), "CGO_ENABLED=1")
	} else {
		args, env = append(args, "-ldflags=-w"), append(slices.Clip(env), "CGO_ENABLED=0") // as make test
		if t.module == "." {
			args = append(args, "-tags=invariants")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append(args, t.packages...)...)
	cmd.Dir, cmd.Env = filepath.Join(r.root, t.module), env
	// What a broken program has started is not left behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err == nil {
		return "", nil
	}
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) && ctx.Err() == nil && !errors.Is(err, exec.ErrWaitDelay) {
		return "", err
	}
	var names []string
	for _, match := range failure.FindAllSubmatch(out, 3) {
		names = append(names, string(bytes.Join(match[1:], nil)))
	}
	if len(names) == 0 {
		names = []string{"the run failed"}
	}
	return strings.Join(names, ", "), nil
}

// compileBPF compiles a BPF program as go generate does, and returns the file that it
// takes the place of.
func (r *run) compileBPF(file, broken string) (replaced, object string, err error) {
	dir := filepath.Join(r.root, filepath.Dir(file))
	object = filepath.Join(r.temp, "program.o")
	cmd := exec.Command("clang", "-O2", "-g", "-target", "bpfel", "-mcpu=v3", "-D__TARGET_ARCH_x86",
		"-Wall", "-Wextra", "-Wno-unused", "-Wno-unused-parameter", "-I", dir, "-c", broken, "-o", object)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("%w: %s", err, out)
	}
	return filepath.Join(filepath.Dir(file), "program_x86_bpfel.o"), object, nil
}

// readResults returns the results in a file by their IDs.
func readResults(name string) (map[string]result, error) {
	f, err := os.Open(name)
	if err != nil {
		return map[string]result{}, err
	}
	defer func() { _ = f.Close() }()
	out := map[string]result{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var res result
		if err := json.Unmarshal(lines.Bytes(), &res); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[res.ID] = res
	}
	return out, lines.Err()
}
