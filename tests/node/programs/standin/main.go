// A stand-in for vLLM in Pods: it is started, asked, scraped and ended as vLLM is, in milliseconds and megabytes.
//
// It reads the checkpoints of tests/vllm/tiny_mtp.py, gives their answers, and drafts what their MTP layer drafts, so
// acceptance is theirs too. Decode asks prefill's side channel for the layout of its KV, and refuses the request if
// prefill doesn't answer or the layouts differ. Faults are told by environment:
//
//	STANDIN_START=5s       until it answers; vLLM takes longer, and enforcers of NetworkPolicies know its address by then
//	STANDIN_STEP=20ms      time of a decode step
//	STANDIN_CRASH=1        end at once
//	STANDIN_METRICS=hang   never answer /metrics
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settings is what the command line of `vllm serve MODEL --flag value ...` says.
type settings struct {
	model string
	flags map[string]string
}

func parse(words []string) (settings, error) {
	if len(words) < 2 || words[0] != "serve" {
		return settings{}, errors.New("usage: vllm serve MODEL [--FLAG [VALUE]]...")
	}
	found := settings{model: words[1], flags: map[string]string{}}
	for rest := words[2:]; len(rest) > 0; rest = rest[1:] {
		name, value, joined := strings.Cut(strings.TrimPrefix(rest[0], "--"), "=")
		if !joined && len(rest) > 1 && !strings.HasPrefix(rest[1], "--") {
			value, rest = rest[1], rest[1:]
		}
		found.flags[name] = value
	}
	return found, nil
}

func (s settings) json(flag string, into any) error {
	if text := s.flags[flag]; text != "" {
		return json.Unmarshal([]byte(text), into)
	}
	return nil
}

// engine is one vLLM server.
type engine struct {
	name, fingerprint string
	depth             int
	split             bool // prefill and decode are apart
	step              time.Duration
	cycle             []int
	wrong             []bool
	layout            string // of the KV
	address           string // of the side channel, as it is advertised
	port              int
	counters          *counters
}

func newEngine(s settings) (*engine, error) {
	var speculation struct {
		Depth int `json:"num_speculative_tokens"`
	}
	var transfer struct {
		Role string `json:"kv_role"`
	}
	var fixture struct {
		Cycle []int  `json:"cycle"`
		Wrong []bool `json:"wrong"`
	}
	var config struct {
		Heads int `json:"num_key_value_heads"`
	}
	step, err := time.ParseDuration(cmpOr(os.Getenv("STANDIN_STEP"), "20ms"))
	port, portErr := strconv.Atoi(cmpOr(os.Getenv("VLLM_NIXL_SIDE_CHANNEL_PORT"), "5600"))
	err = errors.Join(
		err, portErr,
		s.json("speculative-config", &speculation),
		s.json("kv-transfer-config", &transfer),
		read(filepath.Join(s.model, "fixture.json"), &fixture),
		read(filepath.Join(s.model, "config.json"), &config),
	)
	if err != nil {
		return nil, err
	}
	return &engine{
		name:        s.flags["served-model-name"],
		fingerprint: s.flags["fingerprint-value"],
		depth:       speculation.Depth,
		split:       transfer.Role != "",
		step:        step,
		cycle:       fixture.Cycle,
		wrong:       fixture.Wrong,
		layout:      fmt.Sprintf("%d heads, depth %d", config.Heads, speculation.Depth),
		address:     os.Getenv("VLLM_NIXL_SIDE_CHANNEL_HOST"),
		port:        port,
		counters:    newCounters(speculation.Depth),
	}, nil
}

func cmpOr(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

type transferParams struct {
	RemoteDecode  bool   `json:"do_remote_decode"`
	RemotePrefill bool   `json:"do_remote_prefill"`
	Engine        string `json:"remote_engine_id"`
	Blocks        []int  `json:"remote_block_ids"`
	Host          string `json:"remote_host"`
	Port          int    `json:"remote_port"`
}

type request struct {
	Prompt    []int           `json:"prompt"`
	MaxTokens int             `json:"max_tokens"`
	Stream    bool            `json:"stream"`
	Transfer  *transferParams `json:"kv_transfer_params"`
}

type choice struct {
	Index  int     `json:"index"`
	Text   string  `json:"text"`
	Tokens []int   `json:"token_ids"`
	Finish *string `json:"finish_reason"`
}

type completion struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Model       string          `json:"model"`
	Fingerprint string          `json:"system_fingerprint"`
	Choices     []choice        `json:"choices"`
	Transfer    *transferParams `json:"kv_transfer_params,omitempty"`
}

func (e *engine) completion(tokens []int, finish string) completion {
	only := choice{Tokens: tokens}
	if finish != "" {
		only.Finish = &finish
	}
	return completion{
		ID: fmt.Sprintf("cmpl-%d", time.Now().UnixNano()), Object: "text_completion",
		Model: e.name, Fingerprint: e.fingerprint, Choices: []choice{only},
	}
}

func (e *engine) complete(answer http.ResponseWriter, asked *http.Request) {
	var wanted request
	if err := json.NewDecoder(asked.Body).Decode(&wanted); err != nil || len(wanted.Prompt) == 0 {
		refuse(answer, http.StatusBadRequest, fmt.Errorf("a prompt of token ids is needed (%v)", err))
		return
	}
	began := e.counters.begin()
	at := slices.Index(e.cycle, wanted.Prompt[len(wanted.Prompt)-1])
	if at < 0 {
		at = 0
	}
	if wanted.Transfer != nil && wanted.Transfer.RemoteDecode {
		done := e.completion([]int{e.cycle[(at+1)%len(e.cycle)]}, "length")
		done.Transfer = &transferParams{
			RemotePrefill: true, Engine: e.address, Blocks: []int{1}, Host: e.address, Port: e.port,
		}
		e.counters.end("length", began, 1)
		reply(answer, http.StatusOK, done)
		return
	}
	if wanted.Transfer != nil && wanted.Transfer.RemotePrefill {
		if err := e.fetch(wanted.Transfer); err != nil {
			e.counters.refused()
			e.counters.end("error", began, 0)
			refuse(answer, http.StatusInternalServerError, err)
			return
		}
		// As without patches: the padded first step counts as a draft, of which nothing is accepted.
		e.counters.draft(e.depth, 0)
	}
	e.generate(answer, asked, wanted, at, began)
}

// generate walks the model's cycle, as many tokens a step as its MTP layer gets right and one more.
func (e *engine) generate(answer http.ResponseWriter, asked *http.Request, wanted request, at int, began time.Time) {
	var all []int
	if wanted.Stream {
		answer.Header().Set("Content-Type", "text/event-stream")
	}
	for len(all) < wanted.MaxTokens {
		select {
		case <-asked.Context().Done():
			e.counters.end("abort", began, len(all))
			return
		case <-time.After(e.step):
		}
		accepted := 0
		for accepted < e.depth && !e.wrong[(at+accepted)%len(e.cycle)] {
			accepted++
		}
		e.counters.draft(e.depth, accepted)
		var fresh []int
		for i := 0; i <= accepted && len(all)+len(fresh) < wanted.MaxTokens; i++ {
			fresh = append(fresh, e.cycle[(at+1+i)%len(e.cycle)])
		}
		at = (at + len(fresh)) % len(e.cycle)
		all = append(all, fresh...)
		if wanted.Stream {
			finish := ""
			if len(all) == wanted.MaxTokens {
				finish = "length"
			}
			text, _ := json.Marshal(e.completion(fresh, finish))
			fmt.Fprintf(answer, "data: %s\n\n", text)
			answer.(http.Flusher).Flush()
		}
	}
	e.counters.end("length", began, len(all))
	if wanted.Stream {
		fmt.Fprint(answer, "data: [DONE]\n\n")
	} else {
		reply(answer, http.StatusOK, e.completion(all, "length"))
	}
}

// fetch asks prefill's side channel for its layout, in place of the KV.
func (e *engine) fetch(from *transferParams) error {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(from.Host, strconv.Itoa(from.Port)), 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	remote, err := io.ReadAll(connection)
	if err != nil {
		return err
	}
	if string(remote) != e.layout {
		return fmt.Errorf("compatibility mismatch: prefill has %s, decode has %s", remote, e.layout)
	}
	return nil
}

func (e *engine) serveSideChannel() error {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", e.port))
	if err != nil {
		return err
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(connection, e.layout)
			connection.Close()
		}
	}()
	return nil
}

func reply(answer http.ResponseWriter, status int, body any) {
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(status)
	json.NewEncoder(answer).Encode(body)
}

func refuse(answer http.ResponseWriter, status int, err error) {
	reply(answer, status, map[string]any{"error": map[string]any{"message": err.Error(), "code": status}})
}

func run() error {
	if os.Getenv("STANDIN_CRASH") != "" {
		return errors.New("told to crash")
	}
	told, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	start, err := time.ParseDuration(cmpOr(os.Getenv("STANDIN_START"), "5s"))
	if err != nil {
		return err
	}
	time.Sleep(start)
	served, err := newEngine(told)
	if err != nil {
		return err
	}
	patience, err := strconv.Atoi(cmpOr(told.flags["shutdown-timeout"], "0"))
	if err != nil {
		return err
	}
	if served.split {
		if err := served.serveSideChannel(); err != nil {
			return err
		}
	}
	paths := http.NewServeMux()
	paths.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	paths.HandleFunc("GET /v1/models", func(answer http.ResponseWriter, _ *http.Request) {
		reply(answer, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": served.name}}})
	})
	paths.HandleFunc("POST /v1/completions", served.complete)
	paths.HandleFunc("GET /metrics", func(answer http.ResponseWriter, asked *http.Request) {
		if os.Getenv("STANDIN_METRICS") == "hang" {
			<-asked.Context().Done()
			return
		}
		fmt.Fprint(answer, served.counters.page(served.name))
	})
	server := &http.Server{Addr: ":" + cmpOr(told.flags["port"], "8000"), Handler: paths}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-ended:
		return err
	case <-signals:
		limited, cancel := context.WithTimeout(context.Background(), time.Duration(patience)*time.Second)
		defer cancel()
		return server.Shutdown(limited)
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
