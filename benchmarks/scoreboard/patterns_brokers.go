// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alitto/pond/v2"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/panjf2000/ants/v2"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
	"github.com/sourcegraph/conc/pool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kotel"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// brokerPatterns lists patterns with brokers, caches, pools and schedulers, which run code on
// their own goroutines.
var brokerPatterns = []pattern{
	{called: "kafkaProduce4", run: kafkaProduce(4), about: "franz-go with kotel: in the caller's span, after four records that were produced in it"},
	{called: "kafkaProduce8", run: kafkaProduce(8), about: "the same with eight records"},
	{run: kafkaProduceLoop, about: "a loop that produces records without a span of its own: nothing after the broker has confirmed them"},
	{run: kafkaConsume, about: "franz-go with kotel: in the process span of each record, and between them"},

	{run: natsSubscribe, about: "in a NATS handler with a root for each message, and after it"},
	{run: natsSubscribeInside, about: "a NATS handler that was subscribed in a span, while that is live"},
	{run: natsSubscribeOutlives, about: "the same, after that span: nothing, and a message's own span"},
	{run: natsRequest, about: "in the caller's span after nats.Request, and in the answering handler's span"},

	{run: redisCommand, about: "go-redis with redisotel: in the caller's span after a command"},
	{run: redisPipelined, about: "the same, after a pipeline"},
	{run: redisPubSub, about: "a go-redis channel of messages that was opened in a span, after it: in each message's own span and between them"},

	{run: actorMailbox, about: "an actor spawned in the first sender's span, which is over: nothing, and a message's own span"},
	{run: actorMailboxAttach, about: "the same with Attach of the sender's context"},
	{run: actorAsk, about: "a sender that waits for an actor's answer: in its span"},

	{run: retries, about: "failsafe-go retries: in each attempt's span, and in the caller's after them"},
	{inRoot: hedges, about: "failsafe-go hedges: in each attempt's span on its goroutine, and in the caller's after them"},
	{run: hedgeLoser, about: "the attempt that lost, after the caller's span: in its own span, then nothing"},

	{run: cronJob, about: "a robfig/cron scheduler started in a span that is over: nothing, and a job's own span"},
	{run: antsPool, about: "an ants pool whose workers started in a span that is over, with jobs of other spans: nothing"},
	{run: antsPoolAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`"},
	{run: pondPool, about: "a pond pool whose workers started in a span that is over, with a span of its own for each job"},
	{run: pondPoolAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`: in the caller's span"},
	{run: concPool, about: "in the functions of a conc pool, and after Wait"},
	{run: workflow, about: "a workflow's coroutine that outlives the task it started in: nothing, and the span of an activity across tasks"},
	{run: coalesced, about: "a batcher that serves several callers at once: in its span with links, and in a caller's after it"},
}

// kafka starts a broker, and a client that creates spans for its records.
func (r *run) kafka(opts ...kgo.Opt) (client *kgo.Client, tracer *kotel.Tracer, stop func()) {
	cluster := check(kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "scoreboard")))
	tracer = kotel.NewTracer(kotel.TracerProvider(r.provider), kotel.TracerPropagator(r.propagator))
	client = check(kgo.NewClient(append(opts, kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DefaultProduceTopic("scoreboard"),
		kgo.WithHooks(kotel.NewKotel(kotel.WithTracer(tracer)).Hooks()...))...))
	r.produce(context.Background(), client, 1)
	return client, tracer, func() {
		client.Close()
		cluster.Close()
	}
}

// produce sends n records and waits until the broker has confirmed them. The confirmation ends
// their spans on another goroutine.
func (*run) produce(ctx context.Context, client *kgo.Client, n int) {
	var confirmed sync.WaitGroup
	confirmed.Add(n)
	for range n {
		client.Produce(ctx, &kgo.Record{Value: []byte("scoreboard")}, func(_ *kgo.Record, err error) {
			must(err)
			confirmed.Done()
		})
	}
	confirmed.Wait()
}

func kafkaProduce(n int) func(*run) {
	return func(r *run) {
		client, _, stop := r.kafka()
		for range 4 {
			r.job(func(ctx context.Context) { r.produce(ctx, client, n) })
		}
		stop()
	}
}

func kafkaProduceLoop(r *run) {
	client, _, stop := r.kafka()
	for range 4 {
		r.produce(context.Background(), client, 4)
		r.out()
	}
	stop()
}

func kafkaConsume(r *run) {
	client, tracer, stop := r.kafka(kgo.ConsumeTopics("scoreboard"))
	r.produce(context.Background(), client, 4)
	for left := 5; left > 0; {
		fetches := client.PollFetches(context.Background())
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			left--
			ctx, span := tracer.WithProcessSpan(record)
			r.stayIn(ctx)
			span.End()
			r.out()
		})
	}
	stop()
}

// nats starts a broker and a connection to it.
func (*run) nats() (conn *nats.Conn, stop func()) {
	server := check(natsserver.NewServer(&natsserver.Options{DontListen: true, NoLog: true, NoSigs: true}))
	server.Start()
	if !server.ReadyForConnections(time.Minute) {
		panic("the NATS server is not ready")
	}
	conn = check(nats.Connect("", nats.InProcessServer(server)))
	return conn, func() {
		conn.Close()
		server.Shutdown()
		server.WaitForShutdown()
	}
}

// subscribe registers a message handler, and returns a function that sends some messages and
// waits until they are handled.
func subscribe(conn *nats.Conn, handle func()) (send func()) {
	handled := make(chan struct{})
	check(conn.Subscribe("scoreboard", func(*nats.Msg) {
		handle()
		handled <- struct{}{}
	}))
	return func() {
		for range 3 {
			must(conn.Publish("scoreboard", nil))
			<-handled
		}
	}
}

func natsSubscribe(r *run) {
	conn, stop := r.nats()
	subscribe(conn, r.own)()
	stop()
}

func natsSubscribeInside(r *run) {
	conn, stop := r.nats()
	ctx, span := r.root("job")
	subscribe(conn, func() { r.in(ctx) })()
	r.in(ctx)
	span.End()
	stop()
}

func natsSubscribeOutlives(r *run) {
	conn, stop := r.nats()
	var send func()
	r.inSpanThatEnds(func() { send = subscribe(conn, r.own) })
	send()
	stop()
}

func natsRequest(r *run) {
	conn, stop := r.nats()
	check(conn.Subscribe("scoreboard", func(m *nats.Msg) {
		ctx, span := r.root("answer")
		r.in(ctx)
		must(m.Respond(nil))
		span.End()
	}))
	for range 3 {
		ctx, span := r.root("job")
		check(conn.RequestWithContext(ctx, "scoreboard", nil))
		r.in(ctx)
		span.End()
	}
	stop()
}

// redis starts a server, and a client that creates spans.
func (r *run) redis() (client *redis.Client, stop func()) {
	server := check(miniredis.Run())
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	must(redisotel.InstrumentTracing(client, redisotel.WithTracerProvider(r.provider)))
	return client, func() {
		must(client.Close())
		server.Close()
	}
}

// caching runs jobs, each in its own span, that use a cache. It works in the span after the use.
func (r *run) caching(use func(ctx context.Context, client *redis.Client)) {
	client, stop := r.redis()
	for range 4 {
		r.job(func(ctx context.Context) { use(ctx, client) })
	}
	stop()
}

func redisCommand(r *run) {
	r.caching(func(ctx context.Context, client *redis.Client) { must(client.Set(ctx, "key", "value", 0).Err()) })
}

func redisPipelined(r *run) {
	r.caching(func(ctx context.Context, client *redis.Client) {
		check(client.Pipelined(ctx, func(p redis.Pipeliner) error {
			return errors.Join(p.Incr(ctx, "counter").Err(), p.Get(ctx, "counter").Err())
		}))
	})
}

func redisPubSub(r *run) {
	client, stop := r.redis()
	var messages sync.WaitGroup
	received := make(chan struct{})
	r.inSpanThatEnds(func() {
		subscription := client.Subscribe(context.Background(), "scoreboard")
		check(subscription.Receive(context.Background()))
		messages.Go(func() {
			<-received
			channel := subscription.Channel()
			for range 3 {
				<-channel
				r.own()
			}
			must(subscription.Close())
		})
	})
	close(received)
	for range 3 {
		must(client.Publish(context.Background(), "scoreboard", "message").Err())
	}
	messages.Wait()
	stop()
}

// telling starts an actor, which is a goroutine with a mailbox, in a span. It ends the span, and then sends
// messages to the actor from other spans.
func (r *run) telling(message func(sender context.Context)) {
	var actor worker
	r.inSpanThatEnds(func() { actor = newWorker() })
	for range 3 {
		ctx, span := r.root("sender")
		actor.do(func() { message(ctx) })
		r.in(ctx)
		span.End()
	}
	close(actor)
}

func actorMailbox(r *run) { r.telling(func(context.Context) { r.own() }) }

// attached works while a sender's span is attached, and after that.
func (r *run) attached(ctx context.Context) {
	func() {
		defer spanctx.Attach(ctx).Detach()
		r.stayIn(ctx)
	}()
	r.out()
}

func actorMailboxAttach(r *run) { r.telling(r.attached) }

func actorAsk(r *run) { r.telling(func(context.Context) { block() }) }

var errAttempt = errors.New("the attempt fails")

func retries(r *run) {
	policy := retrypolicy.NewBuilder[int]().WithMaxRetries(3).WithDelay(50 * time.Microsecond).Build()
	ctx, span := r.root("job")
	check(failsafe.With[int](policy).WithContext(ctx).GetWithExecution(func(e failsafe.Execution[int]) (int, error) {
		attempt, span := r.start(e.Context(), "attempt")
		defer span.End()
		r.in(attempt)
		if e.Attempts() < 3 {
			return 0, errAttempt
		}
		return 1, nil
	}))
	r.in(ctx)
	span.End()
}

// hedged calls a function with a hedge policy, so that a second attempt starts while the first waits
// for release. Each attempt is a span. The first attempt calls after when its span has ended.
func (r *run) hedged(ctx context.Context, release <-chan struct{}, after func()) (done *sync.WaitGroup) {
	done = new(sync.WaitGroup)
	done.Add(2)
	policy := hedgepolicy.NewBuilderWithDelay[int](50 * time.Microsecond).WithMaxHedges(1).Build()
	check(failsafe.With[int](policy).GetWithExecution(func(e failsafe.Execution[int]) (int, error) {
		defer done.Done()
		attempt, span := r.start(ctx, "attempt")
		r.in(attempt)
		if !e.IsHedge() {
			<-release
			r.in(attempt)
		}
		span.End()
		if !e.IsHedge() {
			after()
		}
		return 1, nil
	}))
	return done
}

func hedges(r *run, ctx context.Context) {
	release := make(chan struct{})
	done := r.hedged(ctx, release, func() { r.in(ctx) })
	r.in(ctx)
	close(release)
	done.Wait()
	r.in(ctx)
}

func hedgeLoser(r *run) {
	ctx, span := r.root("job")
	release := make(chan struct{})
	done := r.hedged(ctx, release, r.out)
	span.End()
	close(release)
	done.Wait()
}

type often struct{}

func (often) Next(now time.Time) time.Time { return now.Add(100 * time.Microsecond) }

func cronJob(r *run) {
	scheduler := cron.New()
	over, ran := make(chan struct{}), make(chan struct{}, 100)
	scheduler.Schedule(often{}, cron.NewChain(cron.SkipIfStillRunning(cron.DiscardLogger)).Then(cron.FuncJob(func() {
		<-over
		r.own()
		ran <- struct{}{}
	})))
	r.inSpanThatEnds(scheduler.Start)
	close(over)
	<-ran
	<-ran
	<-scheduler.Stop().Done()
}

// pooled runs jobs in a pool. The pool's workers were started in a span that has ended.
func (r *run) pooled(submit func(func()), job func(ctx context.Context)) {
	do := func(f func()) {
		done := make(chan struct{})
		submit(func() {
			defer close(done)
			f()
		})
		<-done
	}
	r.inSpanThatEnds(func() { do(block) })
	for range 4 {
		ctx, span := r.root("job")
		do(func() { job(ctx) })
		r.in(ctx)
		span.End()
	}
}

// ants runs jobs in a pool of package ants.
func (r *run) ants(job func(ctx context.Context)) {
	workers := check(ants.NewPool(1, ants.WithDisablePurge(true))) // keep the worker when it is idle
	r.pooled(func(f func()) { must(workers.Submit(f)) }, job)
	workers.Release()
}

func antsPool(r *run)       { r.ants(func(context.Context) { r.out() }) }
func antsPoolAttach(r *run) { r.ants(r.attached) }

// pond runs jobs in a pool of package pond. Its only worker was started in a span that has
// ended.
func (r *run) pond(job func(ctx context.Context)) {
	workers := pond.NewPool(1)
	release := make(chan struct{})
	r.inSpanThatEnds(func() { workers.Submit(func() { <-release }) })
	for range 4 {
		ctx, span := r.root("job")
		workers.Submit(func() {
			job(ctx)
			span.End()
		})
	}
	close(release)
	workers.StopAndWait()
}

func pondPool(r *run)       { r.pond(func(context.Context) { r.own() }) }
func pondPoolAttach(r *run) { r.pond(r.attached) }

func concPool(r *run) {
	ctx, span := r.root("job")
	workers := pool.New().WithContext(ctx).WithMaxGoroutines(2)
	for range 4 {
		workers.Go(func(ctx context.Context) error {
			child, span := r.start(ctx, "child")
			r.in(child)
			span.End()
			r.in(ctx)
			return nil
		})
	}
	must(workers.Wait())
	r.in(ctx)
	span.End()
}

func workflow(r *run) {
	resume, yield := make(chan struct{}), make(chan struct{})
	// A task lets the coroutine run until it yields.
	task := func() {
		r.apart(func() {
			ctx, span := r.root("task")
			resume <- struct{}{}
			<-yield
			r.in(ctx)
			span.End()
		})
	}
	r.apart(func() {
		ctx, span := r.root("first task")
		go func() {
			<-resume
			r.out()
			activity, own := r.root("activity")
			r.in(activity)
			yield <- struct{}{}
			<-resume
			r.in(activity)
			own.End()
			r.out()
			yield <- struct{}{}
		}()
		r.in(ctx)
		span.End()
	})
	task()
	task()
}

func coalesced(r *run) {
	type call struct {
		ctx  context.Context
		done chan struct{}
	}
	calls := make(chan call)
	var all sync.WaitGroup
	all.Go(func() {
		var links []trace.Link
		var batch []call
		for range 3 {
			c := <-calls
			batch, links = append(batch, c), append(links, trace.LinkFromContext(c.ctx))
		}
		ctx, span := r.start(context.Background(), "batch", trace.WithLinks(links...))
		r.in(ctx)
		for _, c := range batch {
			close(c.done)
		}
		r.in(ctx)
		span.End()
		r.out()
	})
	for range 3 {
		all.Go(func() {
			ctx, span := r.root("caller")
			c := call{ctx, make(chan struct{})}
			calls <- c
			<-c.done
			r.in(ctx)
			span.End()
		})
	}
	all.Wait()
}
