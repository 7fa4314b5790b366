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
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// bootable is a kernel that is ready to be booted.
type bootable struct {
	kernel
	// image and config are files, version is the package's that they are from.
	image, config, version string
}

// ready returns a kernel with its image. It fetches or builds what the cache does not
// have.
func (c config) ready(ctx context.Context, k kernel) (*bootable, error) {
	a, err := c.archive(ctx, k.suite, k.arch)
	if err != nil {
		return nil, err
	}
	files, err := a.download(ctx, k.image)
	if err != nil {
		return nil, err
	}
	from := files[0]
	if k.source != "" {
		source, err := a.download(ctx, k.source)
		if err != nil {
			return nil, err
		}
		from = source[0]
	}
	v, err := version(ctx, from)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.cache, "kernels", k.name, v)
	b := &bootable{kernel: k, image: filepath.Join(dir, "vmlinuz"), config: filepath.Join(dir, "config"), version: v}
	if _, err := os.Stat(b.image); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := unpack(ctx, files, dir); err != nil {
		return nil, err
	}
	if k.source == "" {
		return b, os.Rename(filepath.Join(dir, "packaged"), b.image)
	}
	return b, b.build(ctx, from, dir)
}

// bootFile is the image of a kernel or its configuration: in /boot, and since Linux 7.2
// among the modules.
var bootFile = regexp.MustCompile(`^(?:boot|usr/lib/modules/[^/]+)/(vmlinuz|config)(?:-[^/]+)?$`)

// unpack puts a kernel's image, as packaged, and its config into dir.
func unpack(ctx context.Context, files []string, dir string) error {
	missing := map[string]string{"vmlinuz": "packaged", "config": "config"}
	for _, file := range files {
		err := eachFile(ctx, file, func(name string, content io.Reader) error {
			match := bootFile.FindStringSubmatch(name)
			if match == nil || missing[match[1]] == "" {
				return nil
			}
			out, err := os.Create(filepath.Join(dir, missing[match[1]]))
			if err != nil {
				return err
			}
			delete(missing, match[1])
			_, err = io.Copy(out, content)
			return errors.Join(err, out.Close())
		})
		if err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("no image or no configuration in %v", files)
	}
	return nil
}

// build makes an image of a source package, and the configuration that it has.
func (b *bootable) build(ctx context.Context, source, dir string) error {
	tree := filepath.Join(dir, "source")
	// Whatever an earlier attempt has left.
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	progress("unpack %s", filepath.Base(source))
	err := eachFile(ctx, source, func(name string, content io.Reader) error {
		if !strings.HasSuffix(name, ".tar.xz") || !strings.HasPrefix(filepath.Base(name), "linux-source-") {
			return nil
		}
		tar := exec.CommandContext(ctx, "tar", "-xJ", "--strip-components=1", "-C", tree)
		tar.Stdin = content
		_, err := output(tar)
		return err
	})
	if err != nil {
		return err
	}
	config, err := os.ReadFile(b.config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, ".config"), b.configure(string(config)), 0o600); err != nil {
		return err
	}
	progress("build %s; the log is %s", b.name, filepath.Join(dir, "log"))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	for _, args := range [][]string{{"olddefconfig"}, {"-j" + strconv.Itoa(runtime.NumCPU()), "bzImage"}} {
		cmd := exec.CommandContext(ctx, "make", args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = tree, log, log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w; the log is %s", cmd, err, log.Name())
		}
	}
	if err := os.Rename(filepath.Join(tree, ".config"), b.config); err != nil {
		return err
	}
	for _, option := range b.options {
		has, err := b.has(option)
		if err != nil {
			return err
		}
		if !has {
			return fmt.Errorf("CONFIG_%s is more than the configuration allows", option)
		}
	}
	if err := os.Rename(filepath.Join(tree, "arch/x86/boot/bzImage"), b.image); err != nil {
		return err
	}
	return os.RemoveAll(tree)
}

// configure returns a configuration with the kernel's options, and with a release that
// tells it from Debian's. It leaves out modules, none of which a machine of the matrix
// loads, and Debian's keys for them.
func (b *bootable) configure(config string) []byte {
	var out strings.Builder
	for line := range strings.Lines(config) {
		if name, ok := strings.CutSuffix(line, "=m\n"); ok {
			line = "# " + name + " is not set\n"
		}
		out.WriteString(line)
	}
	// The last assignment counts.
	out.WriteString("CONFIG_LOCALVERSION=\"-named\"\nCONFIG_MODULES=n\nCONFIG_SYSTEM_TRUSTED_KEYRING=n\nCONFIG_SYSTEM_TRUSTED_KEYS=\"\"\n")
	for _, option := range b.options {
		out.WriteString("CONFIG_" + option + "=y\n")
	}
	return []byte(out.String())
}

// has reports whether the kernel was built with an option.
func (b *bootable) has(option string) (bool, error) {
	config, err := os.ReadFile(b.config)
	if err != nil {
		return false, err
	}
	return regexp.MustCompile(`(?m)^CONFIG_` + regexp.QuoteMeta(option) + `=y$`).Match(config), nil
}
