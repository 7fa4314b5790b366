// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package resources says what the process of a test holds: open files and mapped memory.
//
// It is for tests only.
package resources
