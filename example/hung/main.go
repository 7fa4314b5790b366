// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command hung is a service that hangs in three ways that users of Go have reported. docs/waiting.md shows what otelctx
// says about them, beside a dump of all goroutines.
//
//	hung
//
// The first line on standard output is pid=N. The service hangs until its standard input ends.
package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

type service struct {
	mu     sync.Mutex // guards the locks that build takes
	locks  string     // the address of the server that grants them
	orders *sql.DB
}

// build holds a mutex while it asks another server, which does not answer
// (https://github.com/concourse/concourse/issues/4393).
func (s *service) build(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	connection, err := net.Dial("tcp", s.locks)
	if err != nil {
		return
	}
	defer func() { _ = connection.Close() }()
	_, _ = connection.Read(make([]byte, 1))
}

// order needs a second connection of a pool while it holds the only one
// (https://github.com/golang/go/issues/16873).
func (s *service) order(ctx context.Context) {
	tx, err := s.orders.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	_ = s.orders.PingContext(ctx) // It should use tx.
}

// health gives up on a check after a while, so that nobody receives the result of the check
// (https://github.com/hellofresh/health-go/issues/224).
func (s *service) health(context.Context) {
	result := make(chan error)
	timeout := make(chan struct{})
	go check(timeout, result)
	close(timeout)
}

func check(timeout <-chan struct{}, result chan<- error) {
	<-timeout
	result <- nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hung:", err)
		os.Exit(1)
	}
}

func run() error {
	provider := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "hung"))),
		spanctx.WithPublishing(),
	)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &service{locks: silent.Addr().String(), orders: sql.OpenDB(connector{})}
	s.orders.SetMaxOpenConns(1)
	serve := func(endpoint string, requests int, handler func(context.Context)) {
		for range requests {
			go func() {
				ctx, span := provider.Tracer("hung").Start(context.Background(), endpoint)
				defer span.End()
				handler(ctx)
			}()
		}
	}
	serve("POST /build", 4, s.build)
	serve("POST /order", 3, s.order)
	serve("GET /health", 5, s.health)
	fmt.Printf("pid=%d\n", os.Getpid())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// connector connects to a database that does nothing.
type connector struct{}

func (connector) Connect(context.Context) (driver.Conn, error) { return connection{}, nil }
func (connector) Driver() driver.Driver                        { return nil }

type connection struct{}

func (connection) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrSkip }
func (connection) Close() error                        { return nil }
func (connection) Begin() (driver.Tx, error)           { return transaction{}, nil }

type transaction struct{}

func (transaction) Commit() error   { return nil }
func (transaction) Rollback() error { return nil }
