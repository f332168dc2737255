"""The modules, one noun per file."""

from ...lazy import lazily

_WHERE = {
    "activation": (
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish PReLU RReLU "
        "ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold"
    ).split(),
    "adaptive": ["AdaptiveLogSoftmaxWithLoss"],
    "attention": ["MultiheadAttention"],
    "container": ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"],
    "convolution": (
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d"
    ).split(),
    "dropout": (
        "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout"
    ).split(),
    "embedding": ["Embedding", "EmbeddingBag"],
    "lazy": (
        "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d "
        "LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear "
        "UninitializedBuffer UninitializedParameter"
    ).split(),
    "linear": ["Bilinear", "Identity", "Linear", "PackedLinear"],
    "loss": (
        "BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss HingeEmbeddingLoss "
        "HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss MarginRankingLoss MultiLabelMarginLoss "
        "MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss "
        "TripletMarginWithDistanceLoss"
    ).split(),
    "normalization": (
        "BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm RMSNorm"
    ).split(),
    "padding": (
        "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d "
        "ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d ZeroPad1d ZeroPad2d "
        "ZeroPad3d"
    ).split(),
    "parallel": ["DataParallel"],
    "pooling": (
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d "
        "AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d"
    ).split(),
    "rnn": ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNBase", "RNNCell", "RNNCellBase"],
    "rope": ["RoPE"],
    "shape": (
        "ChannelShuffle CosineSimilarity Flatten PairwiseDistance PixelShuffle PixelUnshuffle Unflatten"
    ).split(),
    "sync": ["SyncBatchNorm"],
    "transformer": (
        "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer"
    ).split(),
    "windows": (
        "CrossMapLRN2d Fold FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d LPPool3d LocalResponseNorm "
        "MaxUnpool1d MaxUnpool2d MaxUnpool3d Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d"
    ).split(),
}  # fmt: skip
__all__ = sorted(name for names in _WHERE.values() for name in names)
__getattr__, __dir__ = lazily(__name__, _WHERE)
