// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// archive is a release of Debian's archive for an architecture, as apt sees it in a
// directory of its own. Neither the host's sources nor its packages matter.
type archive struct {
	dir     string
	options []string
}

// keyring has the keys of Debian's archive; package debian-archive-keyring, which Debian
// and its kin have.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// archive fetches the indexes of a suite.
func (c config) archive(ctx context.Context, suite, arch string) (*archive, error) {
	dir := filepath.Join(c.cache, "archives", suite+"-"+arch)
	for _, d := range []string{"lists/partial", "cache/archives/partial", "packages"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources := filepath.Join(dir, "sources.list")
	line := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, c.mirror, suite)
	for name, content := range map[string]string{sources: line, filepath.Join(dir, "status"): ""} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	a := &archive{dir: dir}
	for _, option := range []string{
		"Dir::Etc::sourcelist=" + sources,
		"Dir::Etc::sourceparts=/dev/null",
		"Dir::State=" + dir,
		"Dir::State::lists=" + filepath.Join(dir, "lists"),
		"Dir::State::status=" + filepath.Join(dir, "status"),
		"Dir::Cache=" + filepath.Join(dir, "cache"),
		"APT::Architecture=" + arch,
		"APT::Architectures=" + arch,
		"APT::Sandbox::User=root", // The cache need not be open to apt's own user.
		"Acquire::Languages=none",
		"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"Acquire::Retries=3",
	} {
		a.options = append(a.options, "-o", option)
	}
	_, err := a.run(ctx, "apt-get", "update", "-q", "--error-on=any")
	return a, err
}

// run runs a command of apt's and returns what it says.
func (a *archive) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, append(a.options, args...)...)
	cmd.Dir = filepath.Join(a.dir, "packages")
	return output(cmd)
}

// output runs a command and returns its standard output. The error has the end of what
// it wrote to standard error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	return string(out), nil
}

// parts are the packages that a kernel consists of, besides the modules.
var parts = regexp.MustCompile(`^linux-(image|binary|base)-`)

// download fetches a package and those that belong to the same kernel. It returns their
// files; the first is that of the package itself.
func (a *archive) download(ctx context.Context, name string) ([]string, error) {
	var files []string
	seen := map[string]bool{name: true}
	for todo := []string{name}; len(todo) > 0; todo = todo[1:] {
		shown, err := a.run(ctx, "apt-cache", "show", "--no-all-versions", todo[0])
		if err != nil {
			return nil, err
		}
		about := parseFields(shown)
		// As apt names it.
		v := strings.ReplaceAll(about["Version"], ":", "%3a")
		file := filepath.Join(a.dir, "packages", about["Package"]+"_"+v+"_"+about["Architecture"]+".deb")
		if !hasSum(file, about["SHA256"]) {
			progress("fetch %s", filepath.Base(file))
			if _, err := a.run(ctx, "apt-get", "download", "-q", todo[0]); err != nil {
				return nil, err
			}
			if !hasSum(file, about["SHA256"]) {
				return nil, fmt.Errorf("%s: not what the index says", file)
			}
		}
		files = append(files, file)
		for d := range strings.SplitSeq(about["Depends"], ",") {
			d, _, _ = strings.Cut(strings.TrimSpace(d), " ")
			if parts.MatchString(d) && !seen[d] {
				seen[d] = true
				todo = append(todo, d)
			}
		}
	}
	return files, nil
}

// parseFields returns the fields that take one line.
func parseFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ": ")
		if ok && !strings.HasPrefix(name, " ") {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

// hasSum reports whether there is a file and has this SHA-256 sum.
func hasSum(file, sum string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return err == nil && hex.EncodeToString(h.Sum(nil)) == sum
}

// version returns the version of the package in a file.
func version(ctx context.Context, file string) (string, error) {
	v, err := output(exec.CommandContext(ctx, "dpkg-deb", "--field", file, "Version"))
	return strings.TrimSpace(v), err
}

// eachFile calls f for each file that a package has, until f fails.
func eachFile(ctx context.Context, file string, f func(name string, content io.Reader) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // Ends a command whose output is no longer wanted.
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			cancel()
			_ = cmd.Wait()
			return
		}
		err = cmd.Wait()
	}()
	content := tar.NewReader(stdout)
	for {
		header, err := content.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, stdout) // What fills the last block.
			return err
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if header.Typeflag == tar.TypeReg {
			if err := f(path.Clean(header.Name), content); err != nil {
				return err
			}
		}
	}
}
