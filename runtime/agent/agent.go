// Package agent answers the events of a Kairos node's agent. At each boot it
// turns the operator's cluster: block into the stages that Kairos runs later in
// that boot, and puts them where Kairos looks for them, if that place is safe
// for a secret; the status says when it is not. It is the only package that
// knows Kairos' SDK.
package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kairos-io/kairos-sdk/bus"
	"github.com/kairos-io/kairos-sdk/clusterplugin"
	"github.com/mudler/go-pluggable"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/cluster"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
	"github.com/kairos-io/provider-kubernetes/runtime/status"
)

// Agent answers for one node.
type Agent struct {
	Root    *host.Root
	Version string // of this program
}

// Answer reads one request of Kairos' plugin protocol and writes one response.
// An event that this provider doesn't know gets an empty one. What goes wrong
// in answering is in the response; an error is a request that isn't one.
func (a Agent) Answer(event string, request io.Reader, response io.Writer) error {
	err := pluggable.NewPluginFactory(
		pluggable.FactoryPlugin{EventType: bus.EventBoot, PluginHandler: a.boot},
		pluggable.FactoryPlugin{EventType: bus.InitProviderInfo, PluginHandler: a.info},
		pluggable.FactoryPlugin{EventType: clusterplugin.EventClusterReset, PluginHandler: a.reset},
	).Run(pluggable.EventType(event), request, response)
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	return nil
}

// EventName returns the name in a request, or the empty string when b is none.
func EventName(b []byte) string {
	var e pluggable.Event
	if json.Unmarshal(b, &e) != nil {
		return ""
	}
	return string(e.Name)
}

// boot handles agent.boot. The SDK's own handler is not used: it writes in
// place and follows links, so a power cut or a link in its way would leave a
// torn file or put the token elsewhere.
func (a Agent) boot(e *pluggable.Event) (r pluggable.EventResponse) {
	doc := status.Document{Phase: status.Reconciling, Membership: status.MembershipUnknown, Outcome: "none", LastAction: string(bus.EventBoot), Version: a.Version}
	told, err := a.configure(e.Data, &doc)
	var p problem
	switch {
	case errors.As(err, &p):
		doc.Phase, doc.Reason, doc.Message = status.Failed, p.reason, p.text
		doc.Terminal = p.reason == status.ClusterConfigAncestorUnsafe || p.reason == status.ClusterConfigDirUnsafe
		r.Error = status.Sanitize(p.text)
	case !told || status.Read(a.Root).Phase == status.Converged:
		// What is only worth a word doesn't take a success of this boot back.
		return r
	}
	if err := status.Write(a.Root, doc); err != nil {
		r.Error = status.Sanitize(strings.TrimPrefix(r.Error+"; "+err.Error(), "; "))
	}
	return r
}

// configure writes the stages for the block in an event's payload, and into doc
// what is to be told of it; without a block it reports false. Its error is a
// problem.
func (a Agent) configure(data string, doc *status.Document) (told bool, err error) {
	var payload bus.EventPayload
	if err := json.Unmarshal([]byte(data), &payload); err != nil {
		return true, problem{status.EventInvalid, fmt.Sprintf("payload of %s: %v", bus.EventBoot, err)}
	}
	block, err := cluster.Extract([]byte(payload.Config))
	if err != nil {
		return true, problem{status.ConfigInvalid, err.Error()}
	}
	if block == nil {
		return false, a.forget("")
	}
	// The rest of the block is for reconcile to judge, and to tell all at once.
	var own struct {
		Role cluster.Role `json:"role"`
		Path string       `json:"cluster_config_path"`
	}
	if json.Unmarshal(block, &own) == nil && own.Role.Valid() {
		doc.Role = string(own.Role)
	}
	boot := status.BootID(a.Root)
	if boot == "" {
		return true, problem{status.ClusterConfigWrite, "the kernel's boot_id can't be read: the stages are for one boot"}
	}
	place := choose(own.Path)
	if err := a.forget(place); err != nil {
		return true, err
	}
	found := a.inspect(place)
	if own.Path != "" && place != own.Path {
		found = append(found, problem{status.ClusterConfigOverrideRejected, fmt.Sprintf("cluster_config_path is %q: expected a .yaml file in %s; %s is used", own.Path, strings.Join(scanned, " or "), place)})
	}
	worst := summary(found)
	doc.Reason, doc.Message = worst.reason, worst.text

	withheld := problem{worst.reason, "token and commands are withheld: " + worst.text}
	content := stages(boot, block)
	switch worst.reason {
	case status.ClusterConfigAncestorUnsafe, status.ClusterConfigDirUnsafe:
		return true, withheld
	case status.ClusterConfigAncestorMissing, status.ClusterConfigDirCreateFailed:
		return true, worst
	case status.ClusterConfigTokenFileUnsafe:
		// What stands there would be run. A file that says nothing takes its
		// place, by name: nothing is followed and nothing waited for.
		content, err = config(nil), withheld
	}
	if werr := a.Root.WriteFile(place, content, 0o600, -1, -1); werr != nil && err == nil {
		err = problem{status.ClusterConfigWrite, werr.Error()}
	}
	return true, err
}

// info handles init.provider.info, with which kairos-init asks, while an image
// is built, what the image is made of.
func (a Agent) info(*pluggable.Event) (r pluggable.EventResponse) {
	version := a.Version
	// The first is often a link to the second.
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		b, err := status.ReadFile(a.Root, name, 1<<20)
		if err != nil {
			continue
		}
		if v, ok := overlay.Release(b, overlay.BundledKubernetesVersion); ok {
			version = v
			break
		}
	}
	b, err := json.Marshal(bus.ProviderInstalledVersionPayload{Provider: "kubernetes", Version: version})
	if err != nil {
		return bus.EventError(err)
	}
	return pluggable.EventResponse{State: bus.EventResponseSuccess, Data: string(b)}
}

// reset handles cluster.reset, which managers outside of Kairos send. A node is
// never reset halfway: what this program can't do it says.
func (a Agent) reset(*pluggable.Event) pluggable.EventResponse {
	return pluggable.EventResponse{State: bus.EventResponseError, Error: "this release can't reset a node, and nothing was changed: run `kubeadm reset` on it"}
}

// owner is who has to own what is trusted: root, as whom Kairos runs plugins.
func owner() uint32 { return uint32(os.Geteuid()) }
