// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch starts a command that waits before its first instruction. So the command
// can be recorded from there on. It also passes signals on to the command.
//
// The command gets the streams, the environment, the user and the process group of this
// process, and the descriptors that this process was given. It gets none that this process
// has opened, and no capability of this program's file: executing another program drops
// those. The command waits since it is traced (PTRACE_TRACEME) until it is let go. The kernel
// does not give the rights of a set-user-id program to a program that an ordinary user traces.
//
// It knows nothing of recordings.
package launch
