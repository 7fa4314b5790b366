// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch starts a command that is stopped before its first instruction, so that it can be recorded
// from the start. It also passes signals on to the command.
//
// The command inherits the streams, the environment, the user and the process group of this process, and
// the descriptors that this process inherited itself, but not those that it has opened. It gets none of the
// capabilities of this program's file: executing another program drops them. The command is stopped because
// it is traced (PTRACE_TRACEME) until Resume. The kernel does not grant the rights of a set-user-id program
// to a program traced by an ordinary user.
package launch
