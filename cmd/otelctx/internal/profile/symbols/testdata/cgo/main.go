// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command cgo is like prog, but with C code. It reports the addresses of two C functions, one of
// them in a library, and of a Go function.
package main

/*
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

__attribute__((noinline)) int native_code(int x) { return x * 3; }
static void *native_address(void) { return (void *)native_code; }
static void *libc_address(void) { return dlsym(RTLD_DEFAULT, "qsort"); }
*/
import "C"

import (
	"encoding/json"
	"io"
	"os"
	"reflect"
	"runtime"
)

// Report is the first line of the output: addresses by name.
type Report struct {
	Native, Libc, Go uint64
	GoFile           string
	GoLine           int
}

func main() {
	pc := reflect.ValueOf(goCode).Pointer()
	f, _ := runtime.CallersFrames([]uintptr{pc + 1}).Next()
	report := Report{
		Native: uint64(uintptr(C.native_address())) + uint64(C.native_code(0)),
		Libc:   uint64(uintptr(C.libc_address())),
		Go:     uint64(pc), GoFile: f.File, GoLine: f.Line,
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(goCode(1))
}

//go:noinline
func goCode(x int) int { return x + 1 }
