// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// serve runs the service, and a number of clients that send it requests, until ctx is done. It writes
// the lines pid=N and url=URL to stdout once everything is published and the service answers.
func serve(ctx context.Context, stdout io.Writer, clients int) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	provider, err := newTracerProvider(ctx)
	if err != nil {
		return fmt.Errorf("set up tracing: %w", err)
	}
	defer func() { err = errors.Join(err, inTime(ctx, provider.Shutdown)) }()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	// The payment server never answers: the kernel accepts connections, but nobody reads what they send.
	payment, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { _ = payment.Close() }()
	server := &http.Server{Handler: newHandler(provider, "http://"+payment.Addr().String()), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { err = errors.Join(err, inTime(ctx, server.Shutdown)) }()

	url := "http://" + listener.Addr().String() + workPath
	var loading sync.WaitGroup
	loading.Go(func() { load(ctx, url, clients) })
	defer loading.Wait()
	defer cancel()

	if _, err := fmt.Fprintf(stdout, "pid=%d\nurl=%s\n", os.Getpid(), url); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	}
}

// inTime calls shutdown with a time limit of its own, because ctx may be done already.
func inTime(ctx context.Context, shutdown func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return shutdown(ctx)
}
