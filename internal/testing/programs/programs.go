// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package programs builds and runs the programs that tests start, in the same ways as users do.
//
// The package is for tests only.
package programs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// Variant is a way to build a program.
type Variant struct {
	Name string
	// Toolchain is a Go version such as go1.27.1, or empty for the version that runs the test.
	Toolchain string
	// Arch is a GOARCH, or empty for this machine's.
	Arch string
	// Cgo enables cgo, which needs a C compiler.
	Cgo bool
	// Flags lists additional arguments of go build.
	Flags []string
	// Env lists additional environment variables, KEY=value.
	Env []string
}

// NextGo is a Go release that is newer than the oldest supported release.
const NextGo = "go1.27.1"

// Arm64Root is where Debian installs the C library for arm64 programs.
const Arm64Root = "/usr/aarch64-linux-gnu"

// These are the usual variants. Tests of all packages use them, so that the go command compiles the
// standard library only once per variant.
var (
	Static    = Variant{Name: "static"}
	PIE       = Variant{Name: "pie", Flags: []string{"-buildmode=pie"}}
	Stripped  = Variant{Name: "stripped", Flags: []string{"-ldflags=-s -w"}}
	Cgo       = Variant{Name: "cgo", Cgo: true}
	CgoPIE    = Variant{Name: "cgo-pie", Cgo: true, Flags: []string{"-buildmode=pie"}}
	CgoStatic = Variant{Name: "cgo-static", Cgo: true, Flags: []string{"-ldflags=-linkmode=external -extldflags=-static"}}
)

// With returns a copy of the variant that is built by another Go version.
func (v Variant) With(toolchain string) Variant {
	v.Name, v.Toolchain = v.Name+"-"+toolchain, toolchain
	return v
}

// For returns a copy of the variant that is built for another architecture.
func (v Variant) For(arch string) Variant {
	v.Name, v.Arch = v.Name+"-"+arch, arch
	return v
}

// built is the set of programs that this process has already built, as paths in the cache.
var built sync.Map

// Build builds a program and returns its path. module is the directory of the program's module, and pkg
// is the package relative to it. The files in module must not change while the test binary runs. The
// file at that path is removed at the end of the test, but a copy stays in the user's cache directory.
// If this machine cannot build the variant, Build skips the test and names what is missing. Only make
// test-all builds with other toolchains, because the go command downloads them.
//
// On a machine without the go command, the directory named by [prebuiltKey] may contain the program.
func Build(t testing.TB, v Variant, module, pkg string) string {
	t.Helper()
	dir, err := filepath.Abs(module)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(filepath.Join(dir, pkg))
	kept := filepath.Join(os.Getenv(prebuiltKey), v.Name, name)
	if !filepath.IsAbs(kept) || !isFile(kept) {
		if v.Toolchain != "" {
			testenv.NeedAll(t)
		}
		kept = filepath.Join(cache(t), v.key(dir, pkg), name)
		if _, ok := built.Load(kept); !ok {
			v.build(t, dir, pkg, kept)
			built.Store(kept, true)
		}
	}
	// Link or copy the program, because another test may rebuild the cached one at any time.
	exe := filepath.Join(Dir(t), name)
	if err := os.Link(kept, exe); err == nil {
		return exe
	}
	content, err := os.ReadFile(kept) //nolint:gosec // G304: just built
	if err != nil {
		t.Fatal(err)
	}
	Write(t, exe, content)
	return exe
}

// prebuiltKey is an environment variable that .ci/kernels sets: a directory with programs, each at VARIANT/NAME.
const prebuiltKey = "OTELCTX_TEST_PROGRAMS"

func isFile(path string) bool {
	info, err := os.Stat(path) //nolint:gosec // G703: the user names the directory
	return err == nil && info.Mode().IsRegular()
}

// build builds a program and stores it at the path kept, which is in the cache.
func (v Variant) build(t testing.TB, dir, pkg, kept string) {
	t.Helper()
	if err := v.missing(); err != nil {
		t.Skip(err)
	}
	// Build even if the program exists: the go command relinks it only if it is not up to date.
	cmd := exec.Command("go", append(append([]string{"build", "-o", kept}, v.Flags...), pkg)...) //nolint:gosec // G204: the arguments come from the test
	cmd.Dir, cmd.Env = dir, append(os.Environ(), v.env()...)
	// Keep GOTMPDIR on the same file system. Then the go command renames the program into place, and
	// another test never sees part of it. Across file systems it would copy the program.
	cmd.Env = append(cmd.Env, "GOTMPDIR="+filepath.Dir(filepath.Dir(kept)))
	if out, err := cmd.CombinedOutput(); err != nil {
		skipWithoutStaticC(t, out)
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// compiled holds the C programs that this process has compiled, by the command line that compiled them.
var compiled sync.Map

// C compiles a C program with these additional flags and returns its path. The source must not change while the test
// binary runs. The program is removed at the end of the test. Without a C compiler or, for a static program, without a
// static C library, C skips the test and names what is missing.
func C(t testing.TB, source string, flags ...string) string {
	t.Helper()
	return Compile(t, "cc", source, flags...)
}

// Compile is like [C], but uses another compiler, such as g++ or musl-gcc.
func Compile(t testing.TB, compiler, source string, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath(compiler)
	if err != nil {
		t.Skipf("no compiler: %v", err)
	}
	exe := filepath.Join(Dir(t), strings.TrimSuffix(filepath.Base(source), ".c"))
	args := append([]string{"-O2", "-Wall", "-Werror", source}, flags...)
	key := compiler + " " + strings.Join(args, " ")
	if value, ok := compiled.Load(key); ok {
		content, _ := value.([]byte)
		Write(t, exe, content)
		return exe
	}
	cmd := exec.Command(cc, append(args, "-o", exe)...) //nolint:gosec // G204: the arguments come from the test
	out, err := cmd.CombinedOutput()
	skipWithoutStaticC(t, out)
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	content, err := os.ReadFile(exe) //nolint:gosec // G304: just compiled
	if err != nil {
		t.Fatal(err)
	}
	compiled.Store(key, content)
	return exe
}

// skipWithoutStaticC skips the test if the linker's output says that there is no static C library.
func skipWithoutStaticC(t testing.TB, linked []byte) {
	t.Helper()
	if strings.Contains(string(linked), "cannot find -lc") {
		t.Skip("no static C library")
	}
}

// Public copies a program to a file with this name that every user can run, and returns the path of
// that file.
func Public(t testing.TB, program, name string) string {
	t.Helper()
	content, err := os.ReadFile(program) //nolint:gosec // G304: the path comes from the test
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(PublicDir(t), name)
	Write(t, path, content)
	return path
}

// Script writes a shell script and returns its path. It is removed at the end of the test.
func Script(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(Dir(t), "script")
	Write(t, path, []byte("#!/bin/sh\n"+body+"\n"))
	return path
}

// Write writes an executable file. Meanwhile no other goroutine can start a process. Otherwise the new
// process would inherit the file, open for writing, until its exec, and a file that is open for writing
// cannot be executed (ETXTBSY).
func Write(t testing.TB, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil { //nolint:gosec // G306: a program
		t.Fatal(err)
	}
	// Set the mode regardless of the umask.
	if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // G302: a program
		t.Fatal(err)
	}
}

// cache returns the directory that keeps built programs, in the user's cache directory.
func cache(t testing.TB) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		return t.TempDir()
	}
	dir = filepath.Join(dir, "otelctx-test-programs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return t.TempDir()
	}
	return dir
}

// key returns the name of the subdirectory of the cache for a program.
func (v Variant) key(dir, pkg string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%v", dir, pkg, os.Getenv("GOFLAGS"), v))
	return hex.EncodeToString(sum[:8])
}

func (v Variant) env() []string {
	env := append([]string{"CGO_ENABLED=0"}, v.Env...)
	if v.Cgo {
		env[0] = "CGO_ENABLED=1"
	}
	if v.Toolchain != "" {
		env = append(env, "GOTOOLCHAIN="+v.Toolchain)
	}
	if v.Arch != "" && v.Arch != runtime.GOARCH {
		env = append(env, "GOARCH="+v.Arch)
		if v.cross() {
			env = append(env, "CC="+arm64CC)
		}
	}
	return env
}

const arm64CC = "aarch64-linux-gnu-gcc"

// cross reports whether the variant needs a C compiler for arm64 on another machine. It does if it uses
// cgo. It also does if it has any flags, because some, such as -buildmode=pie, need an external linker.
func (v Variant) cross() bool {
	return v.Arch == "arm64" && runtime.GOARCH != "arm64" && (v.Cgo || len(v.Flags) > 0)
}

// missing returns an error that names what this machine lacks to build the variant, or nil.
func (v Variant) missing() error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("no go tool: %w", err)
	}
	compiler := ""
	switch {
	case v.cross():
		compiler = arm64CC
	case v.Cgo:
		out, err := exec.Command("go", "env", "CC").Output()
		if err != nil {
			return err
		}
		compiler = strings.TrimSpace(string(out))
	}
	if compiler != "" {
		if _, err := exec.LookPath(compiler); err != nil {
			return fmt.Errorf("no C compiler: %w", err)
		}
	}
	if v.Toolchain != "" {
		cmd := exec.Command("go", "version")
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+v.Toolchain)
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.New("no " + v.Toolchain + ": " + string(out))
		}
	}
	return nil
}

// Output collects the output of a command. It can be read while the command runs.
type Output struct {
	mu      sync.Mutex
	content strings.Builder
}

// Write appends to the output.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.content.Write(p)
}

// String returns the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.content.String()
}

// hung is the time after which Run kills a command. No command in a test takes that long.
const hung = 2 * time.Minute

// Run runs a command to its end and returns its output and exit code, which is -1 if a signal ended
// the command. Run skips the test if the command must run as another user and the test may not change
// the user.
func Run(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = hung // A child process that outlives the command may keep the pipes open.
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) && cmd.SysProcAttr != nil {
		t.Skip("changing the user needs CAP_SETUID and CAP_SETGID")
	}
	if err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(hung, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	exit := (*exec.ExitError)(nil)
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Error(err, errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
