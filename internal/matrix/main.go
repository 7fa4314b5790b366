// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// config is what the command line says.
type config struct {
	tree, cache, mirror, accel, report string
	kernels, programs                  *regexp.Regexp
	all                                bool
	timeout                            time.Duration
}

// emulation is the accelerator of QEMU's that is none.
const emulation = "tcg"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	var c config
	flags := flag.NewFlagSet("matrix", flag.ContinueOnError)
	flags.StringVar(&c.tree, "tree", "../..", "the work tree")
	flags.StringVar(&c.cache, "cache", filepath.Join(cache, "otelctx-matrix"), "where packages, kernels and logs are kept")
	flags.StringVar(&c.mirror, "mirror", "http://deb.debian.org/debian", "the mirror of Debian's archive")
	flags.StringVar(&c.accel, "accel", emulation, "what runs the processors of this architecture, for QEMU; kvm where there is KVM")
	flags.StringVar(&c.report, "o", "", "the file for the report, instead of standard output")
	kernels := flags.String("kernels", ".", "which kernels, as a regular expression")
	programs := flags.String("programs", ".", "which programs, as a regular expression")
	flags.BoolVar(&c.all, "all", false, "run the long rounds too, as make test-all does; emulation is slow")
	flags.DurationVar(&c.timeout, "timeout", 90*time.Minute, "when a machine is given up")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.kernels, err = regexp.Compile(*kernels); err != nil {
		return err
	}
	if c.programs, err = regexp.Compile(*programs); err != nil {
		return err
	}
	results, err := c.run(ctx)
	if len(results) > 0 {
		report := format(results)
		if c.report == "" {
			fmt.Print(report)
		} else {
			err = errors.Join(err, os.WriteFile(c.report, []byte(report), 0o644))
		}
	}
	return err
}

// progress tells what is being done.
func progress(form string, args ...any) {
	fmt.Fprintf(os.Stderr, "matrix: "+form+"\n", args...)
}

// run runs the matrix, one machine after another. The error says which failed.
func (c config) run(ctx context.Context) ([]*result, error) {
	payloads := map[string]string{}
	var results []*result
	var errs []error
	for _, k := range kernels {
		if !c.kernels.MatchString(k.name) {
			continue
		}
		if payloads[k.arch] == "" {
			files, err := c.fill(ctx, k.arch)
			if err != nil {
				return results, err
			}
			payloads[k.arch] = files
		}
		r, err := c.one(ctx, k, payloads[k.arch])
		if err == nil {
			results = append(results, r)
			err = r.failure()
		}
		if err != nil {
			progress("%s: %v", k.name, err)
			errs = append(errs, fmt.Errorf("%s: %w", k.name, err))
		} else {
			progress("%s: ok", k.name)
		}
	}
	return results, errors.Join(errs...)
}

// fill returns the file of a file system for machines of an architecture.
func (c config) fill(ctx context.Context, arch string) (string, error) {
	dir := filepath.Join(c.cache, "programs", arch)
	p, err := compile(ctx, c.tree, dir, arch, c.programs.MatchString)
	if err != nil {
		return "", err
	}
	if c.accelFor(arch) == emulation {
		p.plan.Environment = append(p.plan.Environment, "OTELCTX_TEST_EMULATED=1")
	}
	if c.all {
		p.plan.Environment = append(p.plan.Environment, "OTELCTX_TEST_ALL=1")
	}
	a, err := c.archive(ctx, commandsSuite, arch)
	if err != nil {
		return "", err
	}
	if err := p.addCommands(ctx, a, dir); err != nil {
		return "", err
	}
	files := filepath.Join(dir, "initramfs")
	return files, p.pack(files)
}

// one runs one machine.
func (c config) one(ctx context.Context, k kernel, files string) (*result, error) {
	b, err := c.ready(ctx, k)
	if err != nil {
		return nil, err
	}
	v, err := emulator(ctx, k.arch)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(c.cache, "logs", k.name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	progress("boot %s (Debian %s); the console is %s", k.name, b.version, name)
	start := time.Now()
	var console bytes.Buffer
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	bootErr := b.boot(ctx, files, c.accelFor(k.arch), io.MultiWriter(&console, log))
	told, err := parse(console.Bytes())
	if err = errors.Join(bootErr, err); err != nil {
		return nil, err
	}
	r := &result{kernel: b, run: told, emulator: "QEMU " + v + ", " + c.accelFor(k.arch), took: time.Since(start)}
	for _, p := range told.programs {
		if p.name == demo {
			continue
		}
		if err := p.decode(ctx); err != nil {
			return nil, err
		}
	}
	return r, r.judge()
}

// accelFor returns what runs the processors of an architecture: those of another one than
// the host's are emulated.
func (c config) accelFor(arch string) string {
	if arch != runtime.GOARCH {
		return emulation
	}
	return c.accel
}

// failure returns what failed in a machine, or nil.
func (r *result) failure() error {
	if len(r.failures) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.failures, "\n\t"))
}
