// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package privilege restricts the capabilities of this program's file to the functions that need them, so
// that they do not extend the rights of the user who runs it.
//
// A file with capabilities, setcap(8), grants them to every user. Recording needs CAP_BPF and CAP_PERFMON.
// Everything else must work without the file's capabilities, so that the kernel checks which processes and
// files the user may read. Therefore [Restrict] clears the effective capabilities of all threads, and [Do]
// raises those for recording in one thread while a function runs. Capabilities that the user has anyway, as
// root does, are left alone.
package privilege
