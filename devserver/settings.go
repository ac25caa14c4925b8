package main

import "go.temporal.io/server/common/dynamicconfig"

// settings are the server's defaults changed for one small machine on which
// people wait for answers; options.dynamicConfig comes on top.
func settings(o *options) dynamicconfig.StaticClient {
	c := dynamicconfig.StaticClient{}
	for key, value := range map[string]any{
		// Each queue reads its database table at most so often a second and shard.
		// The default of 20 makes every activity step take at least 50 ms.
		"history.transferProcessorMaxPollRPS":   1000,
		"history.timerProcessorMaxPollRPS":      1000,
		"history.outboundProcessorMaxPollRPS":   1000,
		"history.visibilityProcessorMaxPollRPS": 200,

		// One partition: no forwarding between partitions, and priorities are exact.
		"matching.numTaskqueueReadPartitions":  1,
		"matching.numTaskqueueWritePartitions": 1,
		"matching.enableFairness":              true,

		// A cancel reaches a running activity in 30 ms without any heartbeat.
		"system.enableCancelActivityWorkerCommand": true,
		"frontend.WorkerCommandsEnabled":           true,

		"history.enableSignalWithStartFromWorkflow": true,

		// Search attributes added while the server runs are seen at once.
		"system.forceSearchAttributesCacheRefreshOnRead": true,
		// The UI asks for many lists at once; the default is 10 a second.
		"frontend.namespaceRPS.visibility": 100,
		// No questions to a host outside about newer versions.
		"frontend.enableServerVersionCheck": false,
	} {
		c[dynamicconfig.MakeKey(key)] = value
	}
	for key, value := range o.dynamicConfig {
		c[dynamicconfig.MakeKey(key)] = value
	}
	return c
}
