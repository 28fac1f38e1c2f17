// One small static program for the Pods that a node's tests need besides what they test: the sandbox's pause, a
// server that says who it is, and a client for looking at the cluster from inside.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const timeout = 5 * time.Second

var verbs = map[string]struct {
	usage string
	words int
	run   func(words []string) error
}{
	"pause":  {"pause: wait for SIGTERM", 0, pause},
	"serve":  {"serve ADDRESS: answer every request with this host's name", 1, serve},
	"get":    {"get URL: print the body of an answer with status 200", 1, get},
	"dial":   {"dial HOST:PORT: open a TCP connection", 1, dial},
	"lookup": {"lookup NAME: print its addresses", 1, lookup},
}

func pause([]string) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
	return nil
}

func serve(words []string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	go func() {
		pause(nil)
		os.Exit(0)
	}()
	return http.ListenAndServe(words[0], http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(answer, name)
	}))
}

func get(words []string) error {
	answer, err := (&http.Client{Timeout: timeout}).Get(words[0])
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, body)
	}
	fmt.Print(string(body))
	return nil
}

func dial(words []string) error {
	connection, err := net.DialTimeout("tcp", words[0], timeout)
	if err != nil {
		return err
	}
	return connection.Close()
}

func lookup(words []string) error {
	limited, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupHost(limited, words[0])
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(found, "\n"))
	return nil
}

func main() {
	words := os.Args[1:]
	if len(words) == 0 {
		words = []string{"pause"} // as the sandbox's image is started
	}
	verb, found := verbs[words[0]]
	if !found || len(words)-1 != verb.words {
		for _, known := range verbs {
			fmt.Fprintln(os.Stderr, known.usage)
		}
		os.Exit(2)
	}
	if err := verb.run(words[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
