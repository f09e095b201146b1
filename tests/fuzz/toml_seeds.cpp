// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

namespace kuafu::fuzz {

std::vector<std::string> plan_seeds() {
  return {
      "[model]\nkind = \"gpt\"\nlayers = 4\nhidden = 64\nheads = 4\nvocab = 256\nsequence = 32\n"
      "[parallel]\ndata = 2\ntensor = { mode = \"1d\", size = 2 }\n[train]\nbatch = 8\nsteps = 3\n",
      "# a comment\nmodel.hidden = 32\nmodel.dtype = \"bf16\"\nmodel.norm = \"rms\"\n[optimizer]\n"
      "kind = \"adamw\"\nlr = 1e-3\nbeta2 = 0.95\n[data]\nkind = \"synthetic\"\n"
      "[parallel.pipeline]\nsize = 2\nschedule = \"1f1b\"\n[train]\nbatch = 8\nmicro_batch = 2\n",
      "[model]\nlayers = 4\nhidden = 64\n[parallel]\ntensor = { mode = \"1d\", size = 4 }\n"
      "[[parallel.layers]]\nfrom = 2\nto = 3\nmode = \"2d\"\n[memory]\nrecompute = \"full\"\n",
      "model = { kind = \"vit\", hidden = 32, image = 16, patch = 4, classes = 5 }\n[data]\nkind = "
      "\"synthetic\"\n[parallel]\ndata = \"auto\"\n[memory]\ndevice = \"6 "
      "GB\"\n[optimizer]\nschedule "
      "= \"cosine\"\nschedule_steps = \"auto\"\nwarmup = 2\n[train]\nloss_scale = "
      "\"dynamic\"\nloss_scale_start = 1024.0\n[cluster]\nranks_per_node = 2\ninter_latency_us = "
      "3\n",
      // The rest of the key table: mixtures, variants of every optimizer, schedules, validation.
      R"toml([model]
kind = "moe_gpt"
layers = 4
hidden = 32
heads = 4
sequence = 16
dropout = 0.1
experts = 4
router = "top2"
capacity_factor = 1.5
balance_loss = 0.01
z_loss = 1e-3
random_second = true
shared_experts = 1
moe_every = 2
[parallel]
data = { size = 4, bucket = "1 MiB", overlap = false, order = "fixed" }
expert = { size = 2 }
zero = 1
[memory]
policy = "plain"
[optimizer]
beta1 = 0.8
epsilon = 1e-6
weight_decay = 0.1
exclude = "vectors"
clip = 1.0
correction_in = "rate"
[train]
batch = 16
seed = 3
telemetry = true
)toml",
      R"toml([model]
kind = "moe_gpt"
layers = 2
hidden = 32
heads = 4
kv_heads = 2
ffn = 24
vocab = 256
sequence = 16
positions = "rotary"
rotary_base = 5e5
mlp = "swiglu"
norm = "rms"
norm_epsilon = 1e-6
tied = false
bias = false
parallel_blocks = true
experts = 2
router = "topk"
top_k = 2
[optimizer]
kind = "lamb"
beta2 = 0.99
bias_correction = false
bound = "ratio"
ratio_min = 0.01
ratio_max = 10
scaled_layers = "all"
schedule = "step"
warmup = 1
warmup_unit = "epochs"
epoch = 64
drop_every = 10
drop_factor = 0.5
[data]
path = "corpus"
hash = "0123456789abcdef"
validation = 0.1
tokenizer = "tokenizer.json"
end_token = "</s>"
document_mask = true
[train]
batch = 8
validation_batches = 2
validate_every = 5
)toml",
      R"toml([model]
kind = "opt"
mlp = "relu"
post_norm = true
embedding = 32
[optimizer]
kind = "lars"
momentum = 0.9
coefficient = 0.02
denominator = "norm_of_sum"
rate_in = "step"
clip_elements = 2.5
schedule = "polynomial"
schedule_steps = 30
power = 2.0
min_lr_ratio = 0.1
warmup = 3
rewarm_at = 12
scale_lr = "sqrt"
base_batch = 8
[train]
batch = 16
steps = 30
loss_scale = 128
[cluster]
intra_latency_us = 1
intra_bandwidth_gbs = 100
inter_bandwidth_gbs = 12.5
compute_gflops = 50
memory_gbs = 20
)toml",
      R"toml([memory]
policy = "static"
device = "64 MB"
host = "1 GB"
chunk_size = "256 KiB"
prefetch = 2
disk = "2 GB"
disk_path = "/var/tmp"
static_share = 0.25
gradients = "disk"
activations = "host"
recompute = "full"
throttle = true
[cluster]
host_memory_gbs = 100
host_gbs = 16
disk_gbs = 2
)toml",
      R"toml([memory]
policy = "auto"
device = "64 MB"
margin = 0.2
horizon = "cycle"
)toml",
      R"toml([model]
dtype = "f16"
[optimizer]
kind = "muon"
nesterov = false
adam_lr = 2e-3
matrix_scale = "size"
coefficients = "polar"
[parallel]
tensor = { mode = "2.5d", size = 4, depth = 1 }
[train]
batch = 8
loss_scale_interval = 100
)toml",
      R"toml([optimizer]
kind = "sgd"
momentum = 0.5
dampening = 0.1
clip = 0
[parallel]
data = { size = 4, mode = "parameter_server", servers = 2, staleness = 1 }
[train]
batch = 8
)toml",
      R"toml([model]
layers = 6
[parallel]
pipeline = { size = 2, schedule = "interleaved", chunks = 2, blocks = [2, 2, 2, 2] }
sequence = { mode = "ring", size = 2 }
[train]
batch = 8
micro_batch = 2
)toml"};
}

std::vector<std::string> suite_seeds() {
  return {
      "[suite]\nname = \"a\"\nquestion = \"Which?\"\nworld = \"threads\"\ntimeout_s = 60\nseeds = "
      "[1, "
      "2]\n[base]\nmodel.hidden = 32\ntrain = { batch = 8, steps = 2 }\n[grid]\nranks = [1, "
      "2]\ntrain.batch = [4, 8]\n",
      "[suite]\nname = \"b\"\nquestion = \"How?\"\ncertify = false\n[[strategy]]\nname = \"one "
      "rank\"\nranks = 1\n[[strategy]]\nname = \"1D\"\nparallel.tensor.mode = "
      "\"1d\"\nparallel.tensor.size = \"$ranks\"\nranks = [2, 4]\n[[skip]]\nstrategy = "
      "\"1D\"\nranks = 4\n[[case]]\nname = \"last\"\nstrategy = \"one rank\"\ntrain.batch = "
      "4\n[[reference]]\nmetric = \"loss.last\"\nbelow = 5.5\nsource = \"a "
      "guess\"\n[[reference]]\nmetric = \"ranks\"\nvalue = 2\ntolerance = 0.1\nwhere = { ranks = 2 "
      "}\n",
      // Two keys of the base end on one line; of the cases on 3 replicas none can be placed.
      "[suite]\nname = \"c\"\nquestion = \"Where?\"\nworlds = [\"threads\", "
      "\"simulated\"]\nbudget_s "
      "= 9.5\n[base]\nmodel = { layers = 4, hidden = 32 }\nparallel = { pipeline = { blocks = "
      "[\n3, "
      "3], size = 2 }, zero = 1 }\n[base.optimizer]\nlr = 3e-4\n[grid]\nparallel.data = [2, "
      "3]\n[[policy]]\nname = \"full\"\nparallel.data.order = \"fixed\"\nmemory.recompute = "
      "\"full\"\nmemory.device = \"6 GB\"\n",
      // Values by formula, and what is computed of the results.
      R"toml([suite]
name = "d"
question = "How fast?"
[base]
model = { hidden = 32, layers = 2 }
train.batch = "= 8 * ranks"
optimizer.lr = "= 0.001 * max(1, model.layers / 2)"
[grid]
ranks = [1, 2]
[[strategy]]
name = "replicas"
parallel.data = "auto"
[[column]]
name = "speed-up"
formula = "at(ranks = 1, step_time_s.median) / step_time_s.median"
unit = "s"
[[column]]
name = "share"
formula = "`speed-up` / ranks"
[[claim]]
name = "twice as fast"
formula = "`speed-up` >= 0.9 * ranks"
where = { ranks = [1, 2], strategy = "replicas" }
within = 0.05
source = "a guess"
[[claim]]
name = "all learn"
formula = "all(loss.last < loss.first)"
where = "ranks > 1"
source = "another"
[[figure]]
kind = "line"
x = "ranks"
y = "speed-up"
by = "strategy"
where = { train.batch = 8 }
log = "xy"
title = "Speed-up"
)toml"};
}

}  // namespace kuafu::fuzz
