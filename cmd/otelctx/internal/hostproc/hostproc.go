// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostproc has the flag --proc, with which otelctx reads the processes of another PID namespace, such as the host's.
package hostproc

import (
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/internal/procfs"
)

// Flag is the flag --proc of the commands that read processes: the directory where the proc file system of
// these processes is mounted.
type Flag string

// Help explains the flag.
const Help = "Find processes in the proc file system that is mounted here, such as the host's in a container. Process ids are those of this file system."

// AfterApply is called by kong if the flag was given.
func (f Flag) AfterApply() error {
	if f == "" {
		return errors.New("--proc is empty: name the directory where a proc file system is mounted, such as /host/proc")
	}
	return procfs.UseHost(string(f))
}

// errForeign means that CPU time and allocations cannot be recorded with --proc.
var errForeign = fmt.Errorf("the proc file system of --proc %w, and the kernel lists only the processes of otelctx's own for BPF programs: "+
	"record wall-clock time (--wall), or run otelctx in that PID namespace (docker run --pid=host, or hostPID in Kubernetes)", procfs.ErrNamespace)

// CheckNamespace returns an error if processes cannot be recorded, because /proc is that of another PID namespace or, for
// samples of CPU time or allocations, because that of --proc is. The sampler reports ids of this PID namespace, and everything else about processes comes
// from the file system.
func CheckNamespace(sampled bool) error {
	if err := procfs.Host().CheckNamespace(); errors.Is(err, procfs.ErrNamespace) {
		return err
	}
	if sampled && procfs.Host().Foreign() {
		return errForeign
	}
	return nil
}
