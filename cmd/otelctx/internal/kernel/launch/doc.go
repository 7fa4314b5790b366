// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch starts a command that is stopped before its first instruction, so that it can be recorded
// from the start. It also passes signals on to the command.
//
// The command inherits the standard streams, the environment, the user and the process group of this process.
// It also inherits the file descriptors that this process has inherited, but none that this process has
// opened. It gets none of the capabilities of this program's file: executing another program drops them. To
// stop the command, Start traces it (PTRACE_TRACEME); Resume detaches from it. A set-user-id program that an
// ordinary user starts in this way therefore does not get the rights of its owner.
package launch
