// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"
)

// load runs a number of clients until ctx is done. Each client sends one request after the other.
func load(ctx context.Context, url string, clients int) {
	const (
		// pause is the time that a client waits between requests, so that a forgotten service uses
		// little CPU time.
		pause = 10 * time.Millisecond
		// heavy is the ratio of all requests to requests for maxDigests digests.
		heavy = 50
	)
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				target := url
				if n%heavy == 0 {
					target += fmt.Sprintf("?digests=%d", maxDigests)
				}
				if _, err := get(ctx, target); err != nil && ctx.Err() == nil {
					log.Printf("load: %v", err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	running.Wait()
	http.DefaultClient.CloseIdleConnections()
}

func get(ctx context.Context, url string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return answer{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("GET %s: %s", url, response.Status)
	}
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return answer{}, fmt.Errorf("GET %s: %w", url, err)
	}
	return a, nil
}
