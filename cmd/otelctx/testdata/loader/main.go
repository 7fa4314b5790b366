// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command loader is a service that loads and unloads libraries all the time.
//
//	loader LIBRARY...
//
// It prints a line when it is ready. Then it executes commands, and answers each with a line:
//
//   - "run" allocates 64 MiB in a span.
//   - "load" answers when libraries have been loaded at least 100 times since the command.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static const char *load(const char *path) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL || dlclose(library) != 0)
		return dlerror();
	return NULL;
}
*/
import "C"

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
	_ "github.com/otelctx/otelctx/spanctx/allocs"
)

// sink keeps the compiler from allocating on the stack.
var sink []byte

func main() {
	provider := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "loader"))),
		spanctx.WithPublishing(),
	)
	tracer := provider.Tracer("")
	loaded := make(chan struct{}) // has a receiver only during the command load
	go load(loaded)
	fmt.Println("ready")
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		switch commands.Text() {
		case "run":
			_, span := tracer.Start(context.Background(), "run")
			for range 64 {
				sink = make([]byte, 1<<20)
			}
			span.End()
		case "load":
			for range 100 {
				<-loaded
			}
		}
		fmt.Println("done")
	}
}

// load loads and unloads the libraries in turn, and tells a receiver of each.
func load(loaded chan<- struct{}) {
	var paths []*C.char
	for _, path := range os.Args[1:] {
		paths = append(paths, C.CString(path))
	}
	for {
		for _, path := range paths {
			if message := C.load(path); message != nil {
				log.Fatal(C.GoString(message))
			}
			select {
			case loaded <- struct{}{}:
			default:
			}
		}
	}
}
