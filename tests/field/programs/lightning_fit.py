"""lightning: Trainer.fit of a LightningModule."""

import lightning as L
import torch
from torch import nn


class Autoencoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        x = x.view(x.size(0), -1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(64, 1, 28, 28))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(Autoencoder(), loader)
    print("done")
