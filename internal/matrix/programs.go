// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/internal/matrix/plan"
)

// packages are those whose tests depend on the kernel, as directories of the work tree. They
// are publisher, ring, reader, recorder and receiver, and what they stand on.
var packages = []string{
	"resourcepublisher",
	"ringbuf",
	"spanctx",
	"reader",
	"internal/boottime",
	"internal/cells",
	"internal/gorecord",
	"internal/goruntime",
	"internal/names",
	"internal/procfs",
	"internal/profilersocket",
	"internal/remotemem",
	"internal/ring",
	"internal/vma",
	"universalprofiling",
	"cmd/otelctx",
	"cmd/otelctx/internal/recording",
	"cmd/otelctx/internal/kernel/sampler",
	"collector/otelctxreceiver",
}

// data are other files and directories of the work tree that tests read.
var data = []string{
	"internal/wire/testdata",
	"cmd/otelctx/otelctx.1",
	"docs/profile-attributes.md",
	"docs/recording.md",
	"docs/wire-format.md",
	"collector/otelctxreceiver/metadata.yaml",
}

// demo is the name of the program that is not a test: the example, which publishes,
// inspects and records by itself.
const demo = "demo"

// commands are the commands of Debian's that tests start, all in one program.
var commands = []string{"mount", "sh", "sleep", "true"}

// commandsPackage has them, at commandsFile.
const (
	commandsSuite   = debian12
	commandsPackage = "busybox-static"
	commandsFile    = "bin/busybox"
)

// Where things are in a guest.
const (
	guestTree    = "/tree"
	guestCommand = "/bin/otelctx"
	guestExample = "/bin/quickstart"
)

// How long a program may take, under emulation, and how long before that a test gives up
// by itself, with the stacks of its goroutines.
const (
	programTimeout = 30 * time.Minute
	testTimeout    = programTimeout - time.Minute
)

// payload is what a guest is given to run.
type payload struct {
	plan plan.Plan
	// files are the host's by the name in the guest.
	files map[string]string
}

// compile builds everything for an architecture, into dir.
func compile(ctx context.Context, tree, dir, arch string, only func(name string) bool) (*payload, error) {
	p := &payload{files: map[string]string{}}
	build := func(from, to string, args ...string) error {
		out := filepath.Join(dir, strings.ReplaceAll(to, "/", "_"))
		cmd := exec.CommandContext(ctx, "go", append(args, "-o", out, ".")...)
		cmd.Dir = filepath.Join(tree, from)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		_, err := output(cmd)
		p.files[to] = out
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	progress("build the tests for %s", arch)
	if err := build("internal/matrix/guest", "/init", "build"); err != nil {
		return nil, err
	}
	for _, pkg := range packages {
		if !only(pkg) {
			continue
		}
		at := path.Join(guestTree, pkg)
		test := path.Join(at, path.Base(pkg)+".test")
		if err := build(pkg, test, "test", "-c"); err != nil {
			return nil, err
		}
		p.plan.Programs = append(p.plan.Programs, plan.Program{
			Name: pkg, Dir: at, Path: test, Timeout: programTimeout,
			Args: []string{"-test.v=test2json", fmt.Sprintf("-test.timeout=%v", testTimeout)},
		})
	}
	read := slices.Clone(data)
	for _, pkg := range packages {
		read = append(read, path.Join(pkg, "testdata"))
	}
	for _, name := range read {
		if err := p.add(filepath.Join(tree, name), path.Join(guestTree, name)); err != nil {
			return nil, err
		}
	}
	if only(demo) {
		if err := build("cmd/otelctx", guestCommand, "build"); err != nil {
			return nil, err
		}
		if err := build("example/quickstart", guestExample, "build"); err != nil {
			return nil, err
		}
		p.plan.Programs = append(p.plan.Programs, plan.Program{
			Name: demo, Dir: "/tmp", Path: guestExample, Timeout: programTimeout,
			Args: []string{"-otelctx", guestCommand, "-profile", "/tmp/profile.pb.gz"},
		})
	}
	return p, nil
}

// addCommands adds the commands that tests start, from an archive.
func (p *payload) addCommands(ctx context.Context, a *archive, dir string) error {
	files, err := a.download(ctx, commandsPackage)
	if err != nil {
		return err
	}
	all := filepath.Join(dir, filepath.Base(commandsFile))
	err = eachFile(ctx, files[0], func(name string, content io.Reader) error {
		if name != commandsFile {
			return nil
		}
		out, err := os.Create(all)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, content)
		return errors.Join(err, out.Close())
	})
	for _, c := range commands {
		p.files["/bin/"+c] = all
	}
	return err
}

// add adds a file, or the files of a directory, if there is one.
func (p *payload) add(dir, to string) error {
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	return filepath.WalkDir(dir, func(file string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		p.files[path.Join(to, filepath.ToSlash(rel))] = file
		return err
	})
}
