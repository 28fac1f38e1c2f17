package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// counters are the series of vLLM's /metrics that the operator reads.
type counters struct {
	lock                            sync.Mutex
	created                         time.Time
	drafts, draftTokens, accepted   int
	perPosition                     []int
	generated, running, refusedOnes int
	finished                        map[string]int
	tpotSum                         float64
	tpotCount                       int
}

func newCounters(depth int) *counters {
	return &counters{created: time.Now(), perPosition: make([]int, depth), finished: map[string]int{}}
}

func (c *counters) begin() time.Time {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.running++
	return time.Now()
}

func (c *counters) end(reason string, began time.Time, tokens int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.running--
	c.finished[reason]++
	c.generated += tokens
	if tokens > 1 {
		c.tpotSum += time.Since(began).Seconds() / float64(tokens-1)
		c.tpotCount++
	}
}

func (c *counters) draft(depth, accepted int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.drafts++
	c.draftTokens += depth
	c.accepted += accepted
	for position := range accepted {
		c.perPosition[position]++
	}
}

func (c *counters) refused() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.refusedOnes++
}

// page is the exposition of all of them.
func (c *counters) page(model string) string {
	c.lock.Lock()
	defer c.lock.Unlock()
	var page strings.Builder
	line := func(name, more string, value any) {
		fmt.Fprintf(&page, "%s{engine=\"0\",model_name=%q%s} %v\n", name, model, more, value)
	}
	line("vllm:spec_decode_num_drafts_total", "", c.drafts)
	line("vllm:spec_decode_num_drafts_created", "", fmt.Sprintf("%.3f", float64(c.created.UnixMilli())/1000))
	line("vllm:spec_decode_num_draft_tokens_total", "", c.draftTokens)
	line("vllm:spec_decode_num_accepted_tokens_total", "", c.accepted)
	for position, accepted := range c.perPosition {
		line("vllm:spec_decode_num_accepted_tokens_per_pos_total", fmt.Sprintf(",position=\"%d\"", position), accepted)
	}
	line("vllm:generation_tokens_total", "", c.generated)
	line("vllm:num_requests_running", "", c.running)
	line("vllm:nixl_num_failed_transfers_total", "", c.refusedOnes)
	line("vllm:request_time_per_output_token_seconds_sum", "", c.tpotSum)
	line("vllm:request_time_per_output_token_seconds_count", "", c.tpotCount)
	for _, reason := range []string{"stop", "length", "abort", "error"} {
		line("vllm:request_success_total", fmt.Sprintf(",finished_reason=%q", reason), c.finished[reason])
	}
	return page.String()
}
