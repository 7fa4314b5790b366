// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package process

import "github.com/otelctx/otelctx/internal/procfs"

// Proc is the flag --proc of the commands that read processes: the directory where the proc file system of
// these processes is mounted.
type Proc string

// ProcHelp explains the flag.
const ProcHelp = "Find processes in the proc file system that is mounted here, such as the host's in a container. Process ids are those of this file system."

// AfterApply is called by kong if the flag was given.
func (p Proc) AfterApply() error { return procfs.UseHost(string(p)) }
