// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package patient

import "golang.org/x/sys/unix"

// futex is the number of the system call in which threads of a process wait for each other.
const futex = unix.SYS_FUTEX
