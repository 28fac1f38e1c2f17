// One binary for all of the control plane, which takes its role from the name it is called by (or from its first
// argument): linked together, etcd and the Kubernetes components share their dependencies on disk and in the build.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// A node's components (kubelet, kube-proxy) would be two more lines here.
var components = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 func() int { return cli.Run(kubectl.NewDefaultKubectlCommand()) },
	"service-account-key":     func() int { return exitStatus(serviceAccountKey()) },
}

func exitStatus(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func main() {
	run, found := components[filepath.Base(os.Args[0])]
	if !found && len(os.Args) > 1 {
		run, found = components[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !found {
		names := make([]string, 0, len(components))
		for name := range components {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: kube COMPONENT [ARG...], where COMPONENT is one of %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}
