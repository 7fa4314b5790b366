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
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/otelctx/otelctx/internal/matrix/plan"
)

// pack writes a file system of the payload, in the format that kernels unpack.
func (p *payload) pack(to string) (err error) {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	text, err := json.Marshal(p.plan)
	if err != nil {
		return err
	}
	w := cpio.NewDedupWriter(cpio.Newc.Writer(out))
	const executable = 0o755
	write := func(name string, content io.ReaderAt, size int64) error {
		return cpio.WriteRecordsAndDirs(w, []cpio.Record{{ReaderAt: content, Info: cpio.Info{
			Name: strings.TrimPrefix(name, "/"), Mode: cpio.S_IFREG | executable, FileSize: uint64(size), NLink: 1,
		}}})
	}
	if err := write(plan.Path, bytes.NewReader(text), int64(len(text))); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		if err := copyFile(p.files[name], func(content io.ReaderAt, size int64) error {
			return write(name, content, size)
		}); err != nil {
			return err
		}
	}
	// The console is there before anything is mounted.
	if err := cpio.WriteRecordsAndDirs(w, []cpio.Record{cpio.CharDev("dev/console", 0o600, 5, 1)}); err != nil {
		return err
	}
	return cpio.WriteTrailer(w)
}

// copyFile has a function write an open file.
func copyFile(name string, write func(io.ReaderAt, int64) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return write(f, info.Size())
}

// emulators are QEMU's commands with the machine and the processor that each emulates,
// and the console that it has.
var emulators = map[string]struct {
	command, console string
	args             []string
}{
	amd64: {"qemu-system-x86_64", "ttyS0", []string{"-machine", "q35", "-cpu", "max"}},
	arm64: {"qemu-system-aarch64", "ttyAMA0", []string{"-machine", "virt,gic-version=max", "-cpu", "max,pauth-impdef=on"}},
}

// boot runs a kernel with a file system until it turns the machine off, and copies the
// console to log.
func (b *bootable) boot(ctx context.Context, files, accel string, log io.Writer) error {
	e := emulators[b.arch]
	args := append(slices.Clone(e.args),
		"-accel", accel, "-smp", "2", "-m", "3G", "-no-reboot",
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none",
		"-kernel", b.image, "-initrd", files,
		// A busy host is late with the interrupts by which the kernel tests its timers.
		"-append", "console="+e.console+" no_timer_check quiet loglevel=1 panic=-1")
	cmd := exec.CommandContext(ctx, e.command, args...)
	cmd.Stdout = log
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// emulator returns the version of the command that emulates an architecture.
func emulator(ctx context.Context, arch string) (string, error) {
	out, err := output(exec.CommandContext(ctx, emulators[arch].command, "--version"))
	if err != nil {
		return "", err
	}
	_, v, _ := strings.Cut(out, "version ")
	v, _, _ = strings.Cut(v, "\n")
	return v, nil
}
