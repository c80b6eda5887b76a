"""The nouns of shardmill as frozen values: sample, stage, manifest, token space, lengths, plan."""
