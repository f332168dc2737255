import torch
import torch.nn as nn
from torch import optim
from torch.autograd import Variable

TEXT = "the quick brown fox jumps over the lazy dog. " * 30


class CharRNN(nn.Module):
    def __init__(self, n_chars, hidden_size=48, n_layers=2):
        super().__init__()
        self.hidden_size, self.n_layers = hidden_size, n_layers
        self.encoder = nn.Embedding(n_chars, 16)
        self.rnn = nn.LSTM(16, hidden_size, n_layers, batch_first=True, dropout=0.1)
        self.decoder = nn.Linear(hidden_size, n_chars)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output.contiguous().view(-1, self.hidden_size)), hidden

    def init_hidden(self, batch_size):
        shape = (self.n_layers, batch_size, self.hidden_size)
        return Variable(torch.zeros(*shape)), Variable(torch.zeros(*shape))


def sample(model, itos, stoi, start, length, temperature=0.5):
    model.eval()
    chars, hidden = list(start), model.init_hidden(1)
    input = torch.tensor([[stoi[c] for c in start]], dtype=torch.long)
    with torch.no_grad():
        for _ in range(length):
            output, hidden = model(input, hidden)
            probabilities = torch.softmax(output[-1] / temperature, dim=-1)
            index = torch.multinomial(probabilities, 1)
            chars.append(itos[index.item()])
            input = index.view(1, 1)
    return "".join(chars)


def main(path):
    torch.manual_seed(0)
    itos = sorted(set(TEXT))
    stoi = {c: i for i, c in enumerate(itos)}
    data = torch.tensor([stoi[c] for c in TEXT], dtype=torch.long)
    seq_length, batch_size = 24, 8
    model = CharRNN(len(itos))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _ in range(60):
        starts = torch.randint(0, len(data) - seq_length - 1, (batch_size,))
        x = torch.stack([data[i : i + seq_length] for i in starts])
        y = torch.stack([data[i + 1 : i + seq_length + 1] for i in starts])
        optimizer.zero_grad()
        output, _ = model(x, model.init_hidden(batch_size))
        loss = criterion(output, y.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    torch.save({"model": model.state_dict(), "chars": itos}, path)
    text = sample(model, itos, stoi, "the ", 60)
    print(text)
    return losses[0], losses[-1], text
