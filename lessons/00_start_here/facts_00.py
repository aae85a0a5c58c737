"""What chapter 00 says beyond its cells, run."""

from hookscope import samples


def test_some_tests_of_the_5_found_nothing(says):
    says("For this 5, some of them found nothing: their maps are all zeros.")
    net, kept = samples.digit_cnn(), []
    with net.block3.register_forward_hook(lambda module, args, output: kept.append(output[0])):
        net(samples.digit(5))
    is_silent = ~kept[0].any(-1).any(-1)
    assert 0 < is_silent.sum() < 32
