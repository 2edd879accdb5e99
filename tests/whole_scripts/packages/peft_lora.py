# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of peft on a Llama of transformers, under DistributedDataParallel.

package: peft
mesh: dp=2
expected: EQUIVALENT
wrong: IGNORED = ["lora_B"]
"""

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

IGNORED = []

dist.init_process_group("gloo")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=16,
)
lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
model = get_peft_model(LlamaForCausalLM(config), lora)
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
    model, [name for name, _ in model.named_parameters() if any(i in name for i in IGNORED)]
)
model = DistributedDataParallel(model)
data = TensorDataset(torch.randint(0, 32, (32, 8)))
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for (ids,) in loader:
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
