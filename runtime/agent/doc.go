// Package agent answers the events of a Kairos node's agent.
package agent

import (
	_ "github.com/kairos-io/kairos-sdk/bus"
	_ "github.com/kairos-io/kairos-sdk/clusterplugin"
	_ "github.com/mudler/go-pluggable"
	_ "github.com/mudler/yip/pkg/schema"
)
