// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"log/slog"
	"sync"
	"time"

	"github.com/XSAM/otelsql"
	"go.opentelemetry.io/contrib/bridges/otelslog"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"modernc.org/sqlite"
)

// sqlPatterns lists patterns with databases (database/sql, otelsql and SQLite), logs and exporters.
var sqlPatterns = []pattern{
	{run: sqlExec, about: "in the driver's ExecContext, inside of otelsql"},
	{run: sqlAfterExec, about: "in the caller's span, after Exec"},
	{run: sqlRows, about: "between two rows: in the caller's span, or otelsql's sql.rows", single: true},
	{run: sqlAfterRows, about: "in the caller's span, after the rows were closed"},
	{run: sqlRowsLeft, about: "after the caller's span, with rows left open"},
	{run: sqlRowsCancelled, about: "in the caller's span, after a cancelled context has closed the rows elsewhere", single: true},
	{run: sqlTransaction, about: "in the caller's span, inside of a transaction and after it"},
	{run: sqlOpener, about: "in the driver's Connect on database/sql's opener, started in a span that is over"},
	{inRoot: slogHandler, about: "in a log processor behind otelslog"},
	{run: logExporter, about: "in the exporter of a log batcher that was made in a span, after it"},
	{run: spanExporter, about: "in the exporter of a span batcher that was made in a span, after it"},
}

// connector opens connections to an in-memory database. In most patterns otelsql wraps it, so code
// that runs in it, except in Connect, is inside of otelsql's spans.
type connector struct {
	sqlite *sqlite.Driver
	// exec is called by each ExecContext, and connect by each Connect.
	exec    func(context.Context)
	connect func(context.Context)
}

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	c.connect(ctx)
	conn, err := c.sqlite.Open(":memory:")
	if err != nil {
		return nil, err
	}
	return &sqlConn{conn, c}, nil
}

func (c *connector) Driver() driver.Driver { return c.sqlite }

// sqlConn is a connection that calls its connector's exec.
type sqlConn struct {
	driver.Conn

	c *connector
}

func (c *sqlConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.c.exec(ctx)
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *sqlConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *sqlConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

func (r *run) database(c *connector) *sql.DB {
	c.sqlite = new(sqlite.Driver)
	if c.exec == nil {
		c.exec = func(context.Context) {}
	}
	if c.connect == nil {
		c.connect = func(context.Context) {}
	}
	// Omit otelsql's span for Connect, so that work in Connect is not in a span of its own.
	return otelsql.OpenDB(c, otelsql.WithTracerProvider(r.provider), otelsql.WithSpanOptions(otelsql.SpanOptions{OmitConnectorConnect: true}))
}

// querying opens a database and runs jobs, each in its own span, that use it.
func (r *run) querying(c *connector, job func(db *sql.DB, ctx context.Context)) {
	db := r.database(c)
	must(db.Ping())
	for range 4 {
		ctx, span := r.root("job")
		job(db, ctx)
		span.End()
	}
	must(db.Close())
}

func each(rows *sql.Rows, work func()) {
	defer func() { must(rows.Close()) }()
	for rows.Next() {
		work()
	}
	must(rows.Err())
}

const statement, query = "SELECT 1", "SELECT 1 UNION SELECT 2 UNION SELECT 3"

func sqlExec(r *run) {
	r.querying(&connector{exec: r.in}, func(db *sql.DB, ctx context.Context) {
		check(db.ExecContext(ctx, statement))
	})
}

func sqlAfterExec(r *run) {
	r.querying(new(connector), func(db *sql.DB, ctx context.Context) {
		check(db.ExecContext(ctx, statement))
		r.stayIn(ctx)
	})
}

func sqlRows(r *run) {
	r.querying(new(connector), func(db *sql.DB, ctx context.Context) {
		each(check(db.QueryContext(ctx, query)), func() {
			// otelsql starts the span sql.rows inside of its span sql.conn.query, which then
			// ends. By rule 2 the goroutine is back in the caller's span, although sql.rows is
			// still live.
			r.oneOf(trace.SpanContextFromContext(ctx), r.started.named("sql.rows"))
		})
	})
}

func sqlAfterRows(r *run) {
	r.querying(new(connector), func(db *sql.DB, ctx context.Context) {
		each(check(db.QueryContext(ctx, query)), func() {})
		r.stayIn(ctx)
	})
}

func sqlRowsLeft(r *run) {
	db := r.database(new(connector))
	for range 4 {
		ctx, span := r.root("job")
		rows := check(db.QueryContext(ctx, query))
		span.End()
		r.stayOut()
		each(rows, func() {})
	}
	must(db.Close())
}

func sqlRowsCancelled(r *run) {
	r.querying(new(connector), func(db *sql.DB, ctx context.Context) {
		limited, cancel := context.WithCancel(ctx)
		rows := check(db.QueryContext(limited, query))
		cancel()
		r.started.awaitEnd(r.started.named("sql.rows").SpanID())
		r.stayIn(ctx)
		_ = rows.Close()
		_ = rows.Err()
	})
}

func sqlTransaction(r *run) {
	r.querying(new(connector), func(db *sql.DB, ctx context.Context) {
		tx := check(db.BeginTx(ctx, nil))
		r.in(ctx)
		check(tx.ExecContext(ctx, statement))
		r.in(ctx)
		must(tx.Commit())
		r.in(ctx)
	})
}

func sqlOpener(r *run) {
	var over sync.Once
	ended := make(chan struct{})
	first := true
	c := &connector{connect: func(context.Context) {
		if !first {
			<-ended
			r.stayOut()
		}
		first = false
	}}
	_, span := r.root("job")
	db := r.database(c)
	db.SetMaxOpenConns(1)
	span.End()
	for range 3 {
		held := check(db.Conn(context.Background()))
		before := db.Stats().WaitCount
		var waiting sync.WaitGroup
		waiting.Go(func() {
			conn := check(db.Conn(context.Background()))
			must(conn.Close())
		})
		for db.Stats().WaitCount == before {
			time.Sleep(10 * time.Microsecond)
		}
		over.Do(func() { close(ended) })
		// Report the connection as bad, so that the opener makes another one for the waiting
		// goroutine.
		_ = held.Raw(func(any) error { return driver.ErrBadConn })
		_ = held.Close()
		waiting.Wait()
	}
	must(db.Close())
}

// logWork is both a log processor and a log exporter. It calls work with each record or batch.
type logWork struct{ work func(context.Context) }

func (l logWork) OnEmit(ctx context.Context, _ *sdklog.Record) error {
	l.work(ctx)
	return nil
}

func (l logWork) Export(ctx context.Context, _ []sdklog.Record) error {
	l.work(ctx)
	return nil
}

func (logWork) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }
func (logWork) Shutdown(context.Context) error                         { return nil }
func (logWork) ForceFlush(context.Context) error                       { return nil }

func slogHandler(r *run, ctx context.Context) {
	provider := sdklog.NewLoggerProvider(sdklog.WithProcessor(logWork{r.in}))
	logger := slog.New(otelslog.NewHandler("scoreboard", otelslog.WithLoggerProvider(provider)))
	for range 3 {
		logger.InfoContext(ctx, "scoreboard")
		block()
	}
}

func logExporter(r *run) {
	_, span := r.root("root")
	provider := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(
		logWork{func(context.Context) { r.out() }}, sdklog.WithExportInterval(time.Millisecond))))
	span.End()
	logger := slog.New(otelslog.NewHandler("scoreboard", otelslog.WithLoggerProvider(provider)))
	for range 3 {
		logger.Info("scoreboard")
		must(provider.ForceFlush(context.Background()))
	}
	must(provider.Shutdown(context.Background()))
}

// spanWork is a span exporter that calls work with each batch.
type spanWork struct{ work func() }

func (s spanWork) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	s.work()
	return nil
}

func (spanWork) Shutdown(context.Context) error { return nil }

func spanExporter(r *run) {
	_, span := r.root("root")
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spanWork{r.out}, sdktrace.WithBatchTimeout(time.Millisecond)))
	span.End()
	for range 3 {
		_, exported := provider.Tracer("scoreboard").Start(context.Background(), "exported")
		exported.End()
		must(provider.ForceFlush(context.Background()))
	}
	must(provider.Shutdown(context.Background()))
}
