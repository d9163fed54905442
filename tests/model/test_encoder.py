from pathlib import Path

import pytest
import torch
from PIL import Image

import captioner
from captioner.data.images import Preprocess, read
from captioner.errors import UserError
from captioner.model.encoder import Encoder, Patches

PHOTOS = Path(captioner.__file__).parent / "assets" / "photos"


def test_the_default_encoder_knows_a_cat():
    """The packaged weights in timm's network classify: ImageNet's 281 to 285 are cats."""
    import timm

    encoder = Encoder()
    classifier = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    classifier.load_state_dict(encoder.network.state_dict())
    pixels, _ = Preprocess()(read(PHOTOS / "cat.jpg"))
    with torch.inference_mode():
        probabilities = classifier.eval()(pixels[None]).softmax(-1)[0]
    assert probabilities.argmax() in range(281, 286)
    assert probabilities[281:286].sum() > 0.5


def test_regions_are_the_feature_map_row_by_row():
    encoder = Encoder()
    pixels = torch.randn(1, 3, 96, 160)
    features, grid = encoder(pixels)
    assert grid == (3, 5) and features.shape == (1, 15, 1280)
    torch.testing.assert_close(features[0, 7], encoder.network(pixels)[0, :, 1, 2])
    assert encoder.measure((96, 160)) == ((3, 5), 1280)


def test_a_smaller_stride_gives_a_finer_grid_of_the_same_features():
    coarse, fine = Encoder(), Encoder(stride=16)
    pixels, _ = Preprocess()(read(PHOTOS / "cat.jpg"))
    with torch.inference_mode():
        (a, grid), (b, finer) = coarse(pixels[None]), fine(pixels[None])
    assert grid == (7, 7) and finer == (14, 14)
    means = torch.stack([a.mean((0, 1)), b.mean((0, 1))])
    assert torch.corrcoef(means)[0, 1] > 0.9


def test_a_coarser_grid_has_the_means_of_cells():
    pixels = torch.randn(1, 3, 128, 192)
    cells = Encoder().network(pixels)
    features, grid = Encoder(grid=(2, 3))(pixels)
    assert grid == (2, 3) and features.shape == (1, 6, 1280)
    torch.testing.assert_close(features[0, 4], cells[0, :, 2:4, 2:4].mean((1, 2)))


def test_a_grid_finer_than_the_networks_is_refused():
    with pytest.raises(UserError, match="a grid of 8 x 7 regions cannot be made of the 7 x 7 cells"):
        Encoder(grid=(8, 7)).measure((224, 224))


def test_the_papers_vgg_19_is_14_by_14_by_512():
    encoder = Encoder("vgg19", weights=None, layer="features.35")
    assert encoder.measure((224, 224)) == ((14, 14), 512)


@pytest.mark.parametrize(
    ("settings", "grid", "size"),
    [
        ({"name": "resnet18"}, (3, 3), 512),
        ({"name": "resnet50", "stride": 16}, (6, 6), 2048),
        ({"name": "resnet18", "layer": "layer3"}, (6, 6), 256),
        ({"name": "timm:resnet18", "layer": 3}, (6, 6), 256),
        ({"name": "timm:vgg11", "layer": 3}, (12, 12), 512),
        ({"name": "timm:densenet121", "layer": -2}, (6, 6), 1024),
        ({"name": "timm:mobilenetv3_small_050"}, (3, 3), 288),
    ],
)
def test_other_networks_by_name(settings, grid, size):
    assert Encoder(**settings, weights=None).measure((96, 96)) == (grid, size)


@pytest.mark.parametrize("name", ["resnet18", "timm:resnet18"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_from_a_file(tmp_path, name, suffix, monkeypatch):
    import timm
    import torchvision
    from safetensors.torch import save_file

    torch.manual_seed(5)
    library = timm.create_model if "timm" in name else torchvision.models.get_model
    state = library("resnet18").state_dict()
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(state, path)
    else:
        save_file(state, path)
    monkeypatch.chdir(tmp_path)
    encoder = Encoder(name, path.name)
    loaded = encoder.network.state_dict()
    torch.testing.assert_close(loaded["layer1.0.conv1.weight"], state["layer1.0.conv1.weight"])
    assert encoder.to_dict()["weights"] == str(path)  # it is found from any working folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "efficientnet_heavy0"}, "unknown encoder 'efficientnet_heavy0'"),
        ({"name": "resnet18", "weights": "absent.pth"}, "no encoder weights at absent.pth"),
        ({"name": "resnet18", "weights": None, "layer": "layer9"}, "no layer 'layer9'"),
        ({"name": "timm:resnet18", "weights": None, "layer": 9}, "no stage 9"),
        ({"name": "vgg11", "weights": None, "stride": 16}, "'vgg11' has one stride only"),
        (
            {"name": "convnext_tiny", "weights": None, "stride": 16},
            "'convnext_tiny' has a stride of 32, not 16",
        ),
        (
            {"name": "resnet50", "weights": None, "layer": "layer2", "stride": 16},
            "'resnet50' has a stride of 8 at layer 'layer2', not 16",
        ),
        ({"name": "patches", "stride": 5}, "must be even and at least 2, not 5"),
        ({"name": "patches", "layer": 2}, "'patches' has neither layers nor weights"),
        ({"name": "patches", "weights": "a.pth"}, "'patches' has neither layers nor weights"),
        ({"weights": None, "stride": 5}, "8, 16 or 32, not 5"),
    ],
)
def test_bad_settings_are_one_clear_line(settings, message):
    with pytest.raises(UserError, match=message) as caught:
        Encoder(**settings)
    assert "\n" not in str(caught.value)


def test_weights_of_a_deeper_network_are_refused(tmp_path):
    import torchvision

    torch.save(torchvision.models.resnet34().state_dict(), tmp_path / "r34.pth")
    with pytest.raises(
        UserError, match=r"do not fit encoder 'resnet18': 96 tensors too many, first layer1\.2"
    ):
        Encoder("resnet18", str(tmp_path / "r34.pth"))


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save({"conv1.weight": torch.zeros(2)}, tmp_path / "w.pth")
    (tmp_path / "text.pth").write_text("no weights")
    for name in ("w.pth", "text.pth"):
        with pytest.raises(UserError, match=f"{name} do not fit encoder 'resnet18'"):
            Encoder("resnet18", str(tmp_path / name))


def test_without_a_network_the_file_to_fetch_is_named(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(UserError, match=r"vgg19.*Network is unreachable.*vgg19-\w+\.pth.*--weights"):
        Encoder("vgg19")


def test_a_stage_of_timms_network_is_the_one_that_timm_gives():
    import timm

    torch.manual_seed(2)
    pixels = torch.randn(1, 3, 64, 64)
    encoder = Encoder("timm:resnet18", weights=None, layer=2)
    stages = timm.create_model("resnet18", features_only=True).eval()
    stages.load_state_dict(encoder.network.state_dict(), strict=False)
    with torch.no_grad():
        torch.testing.assert_close(encoder.cells(pixels), stages(pixels)[2])


def test_a_frozen_encoder_keeps_its_statistics_in_training():
    encoder = Encoder("resnet18", weights=None)
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    encoder.train()
    features, _ = encoder(torch.randn(2, 3, 64, 64))
    assert not features.requires_grad
    for key, value in encoder.state_dict().items():
        assert torch.equal(before[key], value), key


def test_an_unfrozen_encoder_learns_but_keeps_its_batch_statistics():
    encoder = Encoder("resnet18", weights=None)
    encoder.unfreeze()
    encoder.train()
    mean = encoder.network.bn1.running_mean.clone()
    features, _ = encoder(torch.randn(2, 3, 64, 64))
    features.sum().backward()
    assert encoder.network.conv1.weight.grad.abs().sum() > 0
    assert torch.equal(mean, encoder.network.bn1.running_mean)


def test_the_fingerprint_tells_weights_apart():
    torch.manual_seed(0)
    first = Encoder("resnet18", weights=None)
    second = Encoder("resnet18", weights=None)
    assert first.fingerprint() == first.fingerprint() != second.fingerprint()


def test_patches_see_their_own_window_alone():
    patches = Patches(16)
    pixels = torch.randn(1, 3, 112, 112)
    features = patches(pixels)
    assert features.shape == (1, 706, 7, 7)
    changed = pixels.clone()
    changed[..., :47, :] = 0  # row 3 begins at pixel 48, its edges one before
    assert torch.equal(patches(changed)[..., 3:, :], features[..., 3:, :])
    assert not torch.equal(patches(changed)[..., 2, :], features[..., 2, :])


def test_a_photograph_of_one_colour_differs_from_another():
    """A wrong pixel scale gives every photograph the same features."""
    encoder, preprocess = Encoder(), Preprocess()
    batch = torch.stack([preprocess(Image.new("RGB", (64, 64), c))[0] for c in ("red", "green")])
    features, _ = encoder(batch)
    assert (features[0] - features[1]).abs().mean() > 0.05


def test_an_empty_file_of_weights_is_refused_by_name(tmp_path):
    (tmp_path / "empty.pth").touch()
    with pytest.raises(UserError, match=r"empty\.pth do not fit encoder 'resnet18': EOFError"):
        Encoder("resnet18", str(tmp_path / "empty.pth"))
