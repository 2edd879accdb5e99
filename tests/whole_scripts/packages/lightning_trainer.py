# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer with its DDP strategy, clipping, a schedule, and a metric of all ranks.

package: lightning
mesh: dp=2
expected: EQUIVALENT
wrong: REDUCTION = "sum"
"""

import lightning
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

REDUCTION = "mean"


class Classifier(lightning.LightningModule):
    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y, reduction=REDUCTION)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


lightning.seed_everything(1)
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 4, (64,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
trainer = lightning.Trainer(
    max_steps=2,
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), loader)
